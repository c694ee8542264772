"""Paths that exist here, that the code reads, and that will not exist on the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.recipe.code_archive import select_files
from runner.core.recipe.read_paths import SentCode, UnsentPath, find_unsent

RULES = "data/\n*.pt\nimages/\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with ignored data, and with files outside of it and in the home folder."""
    root = tmp_path / "project"
    files = {
        "project/.gitignore": RULES,
        "project/data/train.csv": "1",
        "project/images/cat/1.png": "1",
        "project/weights.pt": "1",
        "project/sent.csv": "1",
        "shared/words.txt": "1",
        "home/corpus/a.txt": "1",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(root)
    return root


def find(
    folder: Path, code: str, *arguments: str, elsewhere: tuple[Path, ...] = (), **params: object
) -> list[UnsentPath]:
    (folder / "train.py").write_text(code)
    chosen = select_files(folder)
    sent = SentCode(folder, chosen.names, chosen.excluded, elsewhere)
    return list(find_unsent(sent, ("python", "train.py"), arguments, params))


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("open('data/train.csv')", "data/train.csv"),
        ("open('data/train.csv', 'rb')", "data/train.csv"),
        ("with open(file='data/train.csv', mode='r') as f: pass", "data/train.csv"),
        ("pd.read_csv('./data/train.csv', sep=',')", "./data/train.csv"),
        ("pd.read_csv(filepath_or_buffer='data/train.csv')", "data/train.csv"),
        ("np.load(os.path.join('data', 'train.csv'))", "data/train.csv"),
        ("D = 'data'\ndef f():\n    return np.loadtxt(D + '/train.csv')", "data/train.csv"),
        ("D = Path('data')\ndf = read_parquet(D / 'train.csv')", "data/train.csv"),
        ("D = 'data'\nx = load(f'{D}/train.csv')", "data/train.csv"),
        ("Path('data/train.csv').read_text()", "data/train.csv"),
        ("Path('data').joinpath('train.csv').open()", "data/train.csv"),
        ("(Path(__file__).resolve().parent / 'data').iterdir()", "data"),
        ("h = os.path.dirname(os.path.abspath(__file__))\nopen(os.path.join(h, 'data/train.csv'))",
         "data/train.csv"),
        ("ImageFolder('images')", "images"),
        ("ImageFolder(root='images', transform=t)", "images"),
        ("for p in Path('images').rglob('*.png'): pass", "images"),
        ("files = glob.glob('images/*/*.png')", "images"),
        ("for f in os.listdir('images'): pass", "images"),
        ("Image.open('images/cat/1.png')", "images/cat/1.png"),
        ("torch.load('weights.pt')", "weights.pt"),
        ("MNIST('data', download=False) or read('data')", "data"),
        ("ap.add_argument('--data-dir', '-d', default='data')", "data"),
        ("f('--init')\np.add_argument('--weights', default='weights.pt')", "weights.pt"),
        ("@click.option('--input', default='data/train.csv')\ndef f(): pass", "data/train.csv"),
        ("def main(data_path: str = 'data/train.csv'): pass", "data/train.csv"),
        ("def main(*, images=Path('images')): pass", "images"),
        ("DATA_DIR = 'data'", "data"),
        ("class Config:\n    train_file: str = 'data/train.csv'", "data/train.csv"),
        ("open('../shared/words.txt')", "../shared/words.txt"),
        ("open(os.path.expanduser('~/corpus/a.txt'))", "~/corpus/a.txt"),
        ("assert os.path.isdir('data') or 1\nopen('data/train.csv')", None),
        ("if not os.path.exists('data'):\n    raise SystemExit('no data')\nopen('data/train.csv')",
         "data/train.csv"),
    ],
)  # fmt: skip
def test_path_that_will_not_exist_is_found(project: Path, code: str, path: str | None) -> None:
    found = find(project, f"import os\n{code}\n")
    assert [each.path for each in found] == ([] if path is None else [path])


@pytest.mark.parametrize(
    "code",
    [
        "open('sent.csv'); open('missing.csv'); open('https://example.org/data')",
        "open('data/train.csv', 'w')",
        "open('data/train.csv', mode='a+')",
        "os.makedirs('data', exist_ok=True)\nopen('data/train.csv')",
        "torch.save(m, 'weights.pt')\nm = torch.load('weights.pt')",
        "if os.path.exists('weights.pt'):\n    m = torch.load('weights.pt')",
        "if not Path('data').exists():\n    download()\nopen('data/train.csv')",
        "try:\n    open('data/train.csv')\nexcept OSError:\n    pass",
        "MNIST('data', train=True, download=True)",
        "urlretrieve(url, 'data/train.csv')\nopen('data/train.csv')",
        "os.environ.get('RUNNER_DATA_DIR', 'data')",
        "ap.add_argument('--output-dir', default='data')",
        "ap.add_argument('--checkpoint', default='weights.pt')",
        "ap.add_argument('--save_path', default='weights.pt')",
        "print('data'); logging.info('weights.pt'); x = {'data': 1}['data']",
        "open('/dev/null'); open('/etc/hosts'); os.listdir('/proc'); os.listdir('/tmp')",
        "open('data/{}.csv'.format(n)); open(f'data/{name}.csv'); open(sys.argv[1])",
        '"""Put the files into data, then read data/train.csv."""',
        "df.to_csv('data/train.csv')\npd.read_csv('data/train.csv')",
        "this is no Python, open('data/train.csv')",
    ],
)
def test_other_paths_cause_no_false_alarm(project: Path, code: str) -> None:
    assert find(project, code) == []


def test_modules_that_the_script_imports_are_read_with_their_lines(project: Path) -> None:
    package = project / "lib" / "inner"
    package.mkdir(parents=True)
    (project / "lib" / "__init__.py").write_text("from . import settings\n")
    (project / "lib" / "settings.py").write_text("ROOT = 'data'\n")
    (package / "__init__.py").write_text("")
    (package / "reader.py").write_text("\n\ndef read():\n    return open('../shared/words.txt')\n")
    (project / "unused.py").write_text("open('weights.pt')\n")
    (project / "data.py").write_text("")
    code = (
        "from lib.inner import reader\nfrom lib.settings import ROOT\nopen(ROOT + '/train.csv')\n"
    )
    found = {each.where: each.path for each in find(project, code)}
    assert found == {"train.py:3": "data/train.csv", "lib/inner/reader.py:4": "../shared/words.txt"}


@pytest.mark.parametrize(
    ("arguments", "path", "fix"),
    [
        (("--data", "../shared"), "../shared", "--input shared=../shared, and write"),
        (("--data=../shared/words.txt",), "../shared/words.txt", "'$RUNNER_INPUT_WORDS'"),
        (("fit", "data/train.csv"), "data/train.csv", "--input train=data/train.csv"),
        (("data_dir=data",), "data", "--data data, and write '$RUNNER_DATA_DIR' in its place"),
        (("fit", "--lr", "0.1"), None, ""),
        (("--output_dir", "data"), None, ""),
        (("--data", "$RUNNER_DATA_DIR", "--data", "sent.csv"), None, ""),
    ],
)
def test_arguments_are_checked(
    project: Path, arguments: tuple[str, ...], path: str | None, fix: str
) -> None:
    found = find(project, "", *arguments)
    assert [each.path for each in found] == ([path] if path else [])
    assert all(fix in each.fix for each in found)


def test_parameters_and_given_options_replace_defaults(project: Path) -> None:
    code = "ap.add_argument('--data-dir', default='data')"
    assert find(project, code, "--data-dir", "$RUNNER_DATA_DIR", data_dir="$RUNNER_DATA_DIR") == []
    (found,) = find(project, code, data_dir="../shared")
    assert (found.where, found.path) == ("the parameter data_dir", "../shared")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "model: big\ndata:\n  train_file: data/train.csv\nout_dir: images\n"),
        ("c.json", '{"model": "big", "train_file": "data/train.csv", "log_dir": "images"}'),
        ("c.toml", 'model = "big"\n\n[data]\ntrain_file = "data/train.csv"\n'),
    ],
)
def test_configuration_that_an_argument_names_is_read(project: Path, name: str, text: str) -> None:
    (project / name).write_text(text)
    (found,) = find(project, "", "--config", name)
    assert found.path == "data/train.csv"
    assert found.where.startswith(f"{name}:")


def test_default_of_an_option_gets_a_command_that_works(project: Path) -> None:
    (found,) = find(project, "ap.add_argument('-d', '--data-dir', default='data')")
    assert found.fix == "pass it with --data data -- --data-dir '$RUNNER_DATA_DIR'"
    assert found.why == ".gitignore:1: data/ leaves it out"


def test_data_that_is_passed_is_not_reported(project: Path) -> None:
    assert find(project, "open('data/train.csv')", elsewhere=(project / "data",)) == []


def test_path_relative_to_the_current_folder_is_found(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.parent)
    (found,) = find(project, "", "--words", "shared/words.txt")
    assert "relative to the current folder" in found.why
    assert find(project, "", "--words", "project/sent.csv")[0].why == found.why


def test_absolute_path_of_this_machine_is_found(project: Path, tmp_path: Path) -> None:
    words = tmp_path / "shared" / "words.txt"
    (found,) = find(project, f"open({str(words)!r})")
    assert found.why == "it is a path of this machine"
    assert find(project, f"open({str(project / 'sent.csv')!r})") == []


def test_words_of_a_shell_script_are_checked(project: Path) -> None:
    script = project / "run.sh"
    script.write_text("# uses data/old\npython train.py --words ../shared/words.txt > log\n")
    (project / "train.py").write_text("open('weights.pt')\n")
    sent = SentCode(project, select_files(project).names, select_files(project).excluded)
    found = find_unsent(sent, ("bash", script.name), (), {})
    assert [each.path for each in found] == ["../shared/words.txt", "weights.pt"]


def test_script_that_is_sent_alone_gets_the_command_for_its_folder(project: Path) -> None:
    (project / "train.py").write_text("def main(path='data/train.csv'): pass\n")
    sent = SentCode(project, ("train.py",), alone="train.py")
    (found,) = find_unsent(sent, ("python", "train.py"), (), {})
    assert found.fix == f"send the folder: runner train {project} --entry train.py"


@pytest.mark.parametrize(
    ("rules", "code", "found"),
    [
        ("lib.py\n", "import lib", "lib.py"),
        ("lib.py\n", "import os, lib as x", "lib.py"),
        ("lib.py\n", "from lib import f", "lib.py"),
        ("pkg/\n", "import pkg.deep", "pkg/deep.py"),
        ("deep.py\n", "from pkg import deep", "pkg/deep.py"),
        ("deep.py\n", "import user", "pkg/deep.py"),  # imported by a module that is sent
    ],
)
def test_module_that_is_left_out_is_named(project: Path, rules: str, code: str, found: str) -> None:
    for name in ("lib.py", "pkg/__init__.py", "pkg/deep.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("")
    (project / "user.py").write_text("from pkg.deep import f\n")
    (project / ".gitignore").write_text(rules)
    paths = {each.path: each for each in find(project, code)}
    assert found in paths
    rule = rules.strip()
    assert f"imports {found}, which will not exist" in str(paths[found])
    assert f".gitignore:1: {rule} leaves it out" in paths[found].why
    (project / ".runnerignore").write_text(paths[found].fix.split()[3] + "\n")
    assert find(project, code) == []


@pytest.mark.parametrize(
    "code", ["try:\n    import lib\nexcept ImportError:\n    lib = None", "import other", "x = 1"]
)
def test_module_that_may_be_absent_is_not_named(project: Path, code: str) -> None:
    (project / "lib.py").write_text("")
    (project / ".gitignore").write_text("lib.py\n")
    assert find(project, code) == []
