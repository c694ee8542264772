"""What pip installs, a run installs: indexes, git, editable packages, and packages of a run.

All packages are made here, and served on this machine.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli
from tests.package_index import make_repository, served, write_index, write_package, write_wheel

Write = Callable[..., Path]


_BY_REFERENCE = """\
env: {{PIP_INDEX_URL: 'http://joe:${{PW}}@{host}/simple'}}
secrets: {{PW: {{env: PW}}}}
"""
_BY_NAME = """\
env: {{UV_DEFAULT_INDEX: 'ours=http://{host}/simple', UV_INDEX_OURS_USERNAME: joe}}
secrets: {{UV_INDEX_OURS_PASSWORD: {{env: PW}}}}
"""


def printed(cli: Cli, folder: Path, *options: object, env: dict[str, str] | None = None) -> str:
    """Train, and return what the script printed."""
    done = cli.run("train", folder, "--no-download", *options, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return cli.ok("logs", "@last")


@pytest.mark.smoke
def test_best_version_of_several_indexes_is_installed(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    folder = script("import demo; print('demo', demo.V)")
    new, old = {("demo", "2.0"): "V = 2\n"}, {("demo", "1.0"): "V = 1\n"}
    write_index(tmp_path / "main", new)
    write_index(tmp_path / "extra", old)
    with served(tmp_path) as host:
        index = f"-i http://{host}/main/simple\n"
        extra = f"http://{host}/extra/simple"
        (folder / "requirements.txt").write_text(f"{index}--extra-index-url {extra}\ndemo==2.0\n")
        assert printed(cli, folder) == "demo 2\n"
        (folder / "requirements.txt").write_text(f"{index}demo\n")
        (folder / "train.yaml").write_text(f"env: {{PIP_EXTRA_INDEX_URL: '{extra}'}}\n")
        assert printed(cli, folder) == "demo 2\n"
        (folder / "uv.toml").write_text('index-strategy = "first-index"\n')
        assert printed(cli, folder) == "demo 1\n", "the setting of uv wins"


def test_branch_that_moved_is_a_new_environment(cli: Cli, script: Write, tmp_path: Path) -> None:
    folder = script("import gpkg; print('V', gpkg.V)")
    source = write_package(tmp_path / "source", "gpkg", "V = 1\n")
    first = make_repository(source, tmp_path / "gpkg.git")
    with served(tmp_path, "joe:hunter2secret") as host:
        key = f"http://{host}/gpkg.git@main"
        line = f"gpkg @ git+http://joe:${{PW}}@{host}/gpkg.git@main"
        (folder / "requirements.txt").write_text(f"{line}\n")
        (folder / "train.yaml").write_text("secrets: {PW: {env: PW}}\n")
        env = {"PW": "hunter2secret"}
        assert printed(cli, folder, env=env) == "V 1\n"
        (source / "gpkg.py").write_text("V = 2\n")
        second = make_repository(source, tmp_path / "gpkg.git")
        assert f"{key} is {second[:12]}" in cli.ok("train", folder, "--dry-run", env=env)
        assert printed(cli, folder, env=env) == "V 2\n"
        shown = cli.json("show", "@last")
        assert shown["run"]["requirements"]["commits"] == {key: second}
        assert shown["environment"]["git"] == {"gpkg": f"http://{host}/gpkg.git@{second}"}
        assert f"gpkg.git@{second}" in cli.ok("show", "@last")
        assert "hunter2secret" not in str(shown) + cli.ok("logs", "@last", "--build")
        # A run that is repeated has the commit of the run.
        (source / "gpkg.py").write_text("V = 3\n")
        make_repository(source, tmp_path / "gpkg.git")
        cli.run("reproduce", "@last", env=env)
        assert cli.ok("logs", "@last") == "V 2\n"
        assert first != second
        # Tables of pyproject.toml and of a script are read in the same way.
        (folder / "requirements.txt").unlink()
        (folder / "train.yaml").unlink()
        plain = line.replace("joe:${PW}", "joe:hunter2secret")
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "p"\nversion = "1"\ndependencies = ["{plain}"]\n'
        )
        done = cli.run("train", folder, "--no-download")
        assert "pyproject.toml contains a password" in done.stderr
        assert cli.ok("logs", "@last") == "V 3\n"
        (folder / "pyproject.toml").unlink()
        (folder / "train.py").write_text(
            f'# /// script\n# dependencies = ["{plain}"]\n# ///\nimport gpkg\nprint("V", gpkg.V)\n'
        )
        assert printed(cli, folder) == "V 3\n"
        assert key in cli.json("show", "@last")["run"]["requirements"]["commits"]


def test_branch_is_resolved_on_the_node_without_git_here(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    folder = script("import gpkg; print('V', gpkg.V)")
    source = write_package(tmp_path / "source", "gpkg", "V = 1\n")
    make_repository(source, tmp_path / "gpkg.git")
    (folder / "requirements.txt").write_text(f"gpkg @ git+file://{tmp_path}/gpkg.git\n")
    (tmp_path / "bin").mkdir()
    without = {"PATH": str(tmp_path / "bin")}  # the services run already
    done = cli.run("train", folder, "--no-download", env=without)
    assert "is resolved on the node, not now" in done.stderr
    assert "git is not installed" in done.stderr
    (source / "gpkg.py").write_text("V = 2\n")
    make_repository(source, tmp_path / "gpkg.git")
    done = cli.run("train", folder, "--no-download", env=without)
    assert cli.ok("logs", "@last") == "V 2\n"


def test_editable_package_is_the_folder_of_the_run(cli: Cli, script: Write, tmp_path: Path) -> None:
    folder = script(
        "import mylib, other, demo, pathlib\n"
        "where = pathlib.Path(mylib.__file__).parent\n"
        "print(where == pathlib.Path('lib').resolve(), (where / 'data.yaml').read_text(), demo.V)\n"
        "where.joinpath('data.yaml').write_text('changed')\n"
    )
    write_package(folder / "lib", "mylib", "", requires=("demo",))
    write_package(folder, "other", "")
    (folder / "lib" / "data.yaml").write_text("as sent")
    write_wheel(folder / "wheels", "demo", "1.0", "V = 1\n")
    (folder / "requirements.txt").write_text("--no-index\n-f wheels\n-e ./lib\n--editable=.\n")
    for _ in range(2):
        assert printed(cli, folder, "--entry", "train.py") == "True as sent 1\n"
    shutil.rmtree(folder / "lib")
    (folder / "requirements.txt").write_text("--no-index\n-e ./lib\n")
    done = cli.run("train", folder, "--no-download", "--entry", "train.py")
    assert done.returncode != 0


@pytest.mark.parametrize(
    "text",
    [
        "./wheels/demo-1.0-py3-none-any.whl ; python_version > '3'\ngone ; sys_platform == 'x'\n",
        "demo @ ./wheels/demo-1.0-py3-none-any.whl\n",
        "-r more/base.txt\n",
        "demo==1.0 --hash=sha256:{hash}\n--require-hashes\n--no-index\n-f wheels\n",
        "demo\n-c pins.txt\n--no-index\n--find-links=wheels\n--pre\n--trusted-host x\n",
    ],
)
def test_file_that_pip_installs_is_installed(cli: Cli, script: Write, text: str) -> None:
    folder = script("import demo; print('demo', demo.V)")
    wheel = write_wheel(folder / "wheels", "demo", "1.0", "V = 1\n")
    write_wheel(folder / "wheels", "demo", "2.0", "V = 2\n")
    (folder / "more").mkdir()
    (folder / "more" / "base.txt").write_text("--no-index\n-f ../wheels\n-c ../pins.txt\ndemo\n")
    (folder / "pins.txt").write_text("demo<2\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "requirements.txt").write_text(text.replace("{hash}", digest))
    assert printed(cli, folder) == "demo 1\n"


@pytest.mark.parametrize(
    ("line", "recipe"),
    [
        ("-i http://joe:${{PW}}@{host}/simple\n", "secrets: {{PW: {{env: PW}}}}"),
        ("--no-index\n-f http://joe:${{PW}}@{host}/simple/demo\n", "secrets: {{PW: {{env: PW}}}}"),
        ("", "secrets: {{UV_DEFAULT_INDEX: {{env: ADDRESS}}}}"),
        ("", "secrets: {{PIP_INDEX_URL: {{env: ADDRESS}}}}"),
        ("", _BY_REFERENCE),
        ("", _BY_NAME),
    ],
)
def test_secret_is_used_while_packages_are_installed(
    cli: Cli, script: Write, tmp_path: Path, line: str, recipe: str
) -> None:
    folder = script("import demo; print('demo', demo.V)")
    write_index(tmp_path / "index", {("demo", "1.0"): "V = 1\n"})
    password = "hunter2secret"
    with served(tmp_path / "index", f"joe:{password}") as host:
        (folder / "requirements.txt").write_text(line.format(host=host) + "demo\n")
        (folder / "train.yaml").write_text(recipe.format(host=host))
        address = "http://joe:{}@" + host + "/simple"
        env = {"PW": password, "ADDRESS": address.format(password)}
        assert printed(cli, folder, env=env) == "demo 1\n"
        wrong = {"PW": "wrong-password", "ADDRESS": address.format("wrong-password")}
        (folder / "requirements.txt").write_text(line.format(host=host) + "demo>0\n")
        done = cli.run("train", folder, "--no-download", env=wrong)
        assert done.returncode == 1
        assert "401" in done.stdout + done.stderr
        seen = done.stdout + done.stderr + cli.ok("why", "@last") + cli.ok("show", "@last")
        seen += cli.ok("logs", "@last", "--build") + str(cli.json("show", "@last"))
        for each in (password, "wrong-password"):
            assert each not in seen
    nodes = cli.home / "local" / "batch" / "nodes"
    for found in nodes.rglob("*"):
        if found.is_file() and "workitems" not in found.parts:
            assert password.encode() not in found.read_bytes(), found


def test_failed_build_names_the_package_and_its_fix_works(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    folder = script("import needy; print('needy', needy.V)")
    write_package(folder / "needy", "needy", "V = 1\n")
    backend = folder / "needy" / "backend.py"
    noise = "for n in range(300):\n    print('note', n)\n"
    backend.write_text(f"{noise}import helper_of_build\n{backend.read_text()}")
    write_index(tmp_path / "index", {("helper_of_build", "1.0"): ""})
    with served(tmp_path / "index") as host:
        listed = f"-i http://{host}/simple\nneedy @ ./needy\n"
        (folder / "requirements.txt").write_text(listed)
        done = cli.run("train", folder, "--no-download", "--entry", "train.py")
        cause = "needy cannot be built: ModuleNotFoundError: No module named 'helper_of_build'"
        assert cause in done.stderr
        found = cli.json("why", "@last")
        assert cause in found["message"].partition("\n")[0]
        assert found["command"].endswith("--build")
        assert "note 0\n" in cli.ok(*found["command"].split()[1:])
        [line] = re.findall("`(extra-build-dependencies .*?)` to uv.toml", found["fix"])
        (folder / "uv.toml").write_text(line + "\n")
        assert printed(cli, folder, "--entry", "train.py") == "needy 1\n"


_INSTALLS = [
    *("pip install", "pip3 install", "python -m pip install", "python3 -m pip install"),
    *("pip install --user", "python -m pip install -q --user", "PIP_USER=1 pip install"),
    *("uv pip install", "uv pip install --system", "UV_SYSTEM_PYTHON=1 uv pip install"),
    *("pip$VERSION install", "python$VERSION -m pip install"),
    "python install.py",
    "python old.py",
    "python -c 'import sys; from pip._internal.cli.main import main; main(sys.argv[1:])' install",
]


def test_every_way_of_installing_is_for_the_run_alone(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    """Install a higher version in each way, in `prepare` and in a script."""
    count = len(_INSTALLS) + 1
    # Each has another size, because Python takes files of the same time and size for the same.
    wheels = {("demo", f"{n}.0"): f"V = {n}\n{'#' * n}\n" for n in range(count + 2)}
    write_index(tmp_path / "index", wheels)
    look = 'python -c "import demo; print(demo.V, demo.__file__)"'
    lines = ["VERSION=$(python -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])')", look]
    for number, each in enumerate(_INSTALLS, 2):
        lines += [f"{each} demo=={number}.0 >&2", look]
    folder = script("\n".join(["set -e", *lines]), "run.sh")
    (folder / "old.py").write_text(
        "import pip, sys\nsys.exit(pip.main(['install', *sys.argv[1:]]))\n"
    )
    (folder / "install.py").write_text(
        "import subprocess, sys\n"
        "subprocess.check_call([sys.executable, '-m', 'pip', 'install', *sys.argv[1:]])\n"
    )
    write_package(folder / "lib", "mylib", "")
    (folder / "more.sh").write_text(
        "set -e\npip install -q -e ./lib\npip install -q -r more.txt\n"
        "python -c 'import mylib, demo; print(mylib.__file__, demo.V)'\n"
    )
    (folder / "more.txt").write_text(f"demo=={count}.0\n")
    (folder / "requirements.txt").write_text("demo==0.0\n")
    with served(tmp_path / "index") as host:
        (folder / "train.yaml").write_text(
            "command: sh run.sh\nprepare: pip install -q demo==1.0\n"
            f"env: {{PIP_INDEX_URL: 'http://{host}/simple', UV_DEFAULT_INDEX: "
            f"'http://{host}/simple', PIP_NO_CACHE_DIR: '1'}}\n"
        )
        rows = [line.split() for line in printed(cli, folder).splitlines()]
        assert [int(version) for version, _ in rows] == list(range(1, count + 1))
        assert all("/wd/venv/lib/" in path for _, path in rows), rows
        (folder / "train.yaml").write_text(
            (folder / "train.yaml").read_text().replace("run.sh", "more.sh")
        )
        where, version = printed(cli, folder).split()
        assert where.endswith("/wd/code/lib/mylib.py")
        assert int(version) == count
        # Another run with the same requirements has the packages that they list.
        (folder / "train.yaml").unlink()
        (folder / "train.py").write_text("import demo\nprint(demo.V, demo.__file__)\n")
        env = f"PIP_INDEX_URL=http://{host}/simple"
        more = (f"UV_DEFAULT_INDEX=http://{host}/simple", "PIP_NO_CACHE_DIR=1")
        options = [word for each in (env, *more) for word in ("--env", each)]
        version, path = printed(cli, folder, *options).split()
        assert version == "0"
        assert "/runner/envs/" in path
