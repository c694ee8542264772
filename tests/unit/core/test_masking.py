"""Secrets are masked by value, by form and by name; ordinary text stays."""

from __future__ import annotations

import base64
import json

import pytest

from runner.core.masking import (
    Mask,
    find_document_secrets,
    is_secret_name,
)

KEY = f"{'A' * 86}=="


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:hunter22@host/x?sig=a%2Bb&se=1", "https://***@host/x?sig=***&se=1"),
        ("AccountName=a;AccountKey=abc==;E=1", "AccountName=a;AccountKey=***;E=1"),
        ("Authorization: SharedKey account:abc==", "Authorization: SharedKey ***"),
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer ***"),
        ("train.py --password hunter2222 --lr 0.1", "train.py --password *** --lr 0.1"),
        ("WANDB_API_KEY=0123456789", "WANDB_API_KEY=***"),
        ("hf_token: 'abcdefghi'", "hf_token: '***'"),
        ('{"dbPassword": "x"}', '{"dbPassword": "***"}'),
        ("clientSecret = abcdefgh", "clientSecret = ***"),
        (f"the batch key {KEY}", "the batch key ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\nabc\n-----END RSA PRIVATE KEY-----",
         "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----"),
        ("used ghp_0123456789abcdefghijABCD in a clone", "used *** in a clone"),
        (r'{"password": "abc\"def ghi", "lr": 1}', '{"password": "***", "lr": 1}'),
        (r'"{\"password\": \"abc\\\"def\", \"lr\": 1}"', r'"{\"password\": \"***\", \"lr\": 1}"'),
        ("passphrase: 'correct horse' lr: 'x'", "passphrase: '***' lr: 'x'"),
    ],
)  # fmt: skip
def test_secrets_are_recognised_without_being_declared(text: str, expected: str) -> None:
    mask = Mask()
    assert mask.text(text) == expected
    assert mask.count >= 1


@pytest.mark.parametrize(
    "text",
    [
        "the token was 123456 long",
        "max_tokens=1000000 keyboard=qwertyuiop monkey=banana123",
        "password_file=/run/secrets/one tokenizer=bert-base-uncased",
        "PWD=/home/me/project",
        "epoch 3 loss 0.125 key 4711",
        "https://example.org/a?b=c",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    mask = Mask()
    assert (mask.text(text), mask.count) == (text, 0)


def test_known_values_are_masked_in_plain_and_quoted_form() -> None:
    mask = Mask(["correct horse/battery", "short"])
    assert mask.text("correct horse/battery correct%20horse%2Fbattery short") == "*** *** short"


def test_longer_known_value_is_masked_before_a_part_of_it() -> None:
    assert Mask(["abcdef", "abcdefgh"]).text("abcdefgh") == "***"


def test_documents_are_masked_by_key_and_by_name_of_a_variable() -> None:
    document = {
        "env": {"HF_TOKEN": "x1", "EPOCHS": "3"},
        "settings": [{"name": "DB_PASSWORD", "value": "y2"}, {"name": "LR", "value": "0.1"}],
        "nested": [["sig=abcdef"]],
        "number": 7,
        "nothing": None,
    }
    mask = Mask()
    assert mask.document(document) == {
        "env": {"HF_TOKEN": "***", "EPOCHS": "3"},
        "settings": [{"name": "DB_PASSWORD", "value": "***"}, {"name": "LR", "value": "0.1"}],
        "nested": [["sig=***"]],
        "number": 7,
        "nothing": None,
    }
    assert mask.count == 3


def test_secrets_inside_escaped_json_are_masked() -> None:
    inner = json.dumps({"api_key": "abcdefgh"})
    assert "abcdefgh" not in json.dumps(Mask().document({"message": inner}))


def test_values_of_secret_variables_and_passwords_of_urls_are_found() -> None:
    variables = {
        "MY_TOKEN": "token-value",
        "PWD": "/home/me/project",
        "PIP_INDEX_URL": "https://me:indexpass@host/simple",
        "http_proxy": "http://[broken@",
        "SHORT_KEY_TOKEN": "abc",
    }
    assert find_document_secrets(variables) == {"token-value", "indexpass"}


@pytest.mark.parametrize("name", ["HF_TOKEN", "apiKey", "db-password", "SAS", "clientSecret"])
def test_names_of_secrets_are_recognised(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["PATH", "HF_TOKEN_PATH", "AZURE_CLIENT_ID", "sort_key", "PWD"])
def test_other_names_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("secret", ['pass"word\\1', "pÄssword 1", "plainpassword1"])
def test_known_values_are_masked_in_every_encoding(secret: str) -> None:
    once = json.dumps(secret)[1:-1]
    encoded = base64.b64encode(f"user:{secret}".encode()).decode()
    texts = (secret, once, json.dumps(once)[1:-1], repr(secret), encoded)
    for text in texts:
        shown = Mask([secret]).text(f"[{text}]")
        assert "***" in shown, text
        assert not [part for part in ("word", encoded[8:16]) if part in shown], text


def test_secrets_of_a_document_are_found_to_mask_them_elsewhere() -> None:
    run = {
        "command": ["python", "train.py", "--password", "hunter22", "--lr", "0.1", "--token"],
        "env": {"DB": 'Server=tcp:x;Password=abc"def;Encrypt=true', "MY_TOKEN": "token-of-env"},
        "trial": {"params": {"api_key": "key-of-trial", "url": "https://me:urlpass1@host/x"}},
        "secrets": [{"name": "HF_TOKEN", "env": "MY_HF_TOKEN"}],
        "words": ["--password=joined22", "--verbose", "--secret", "--other"],
    }
    assert find_document_secrets(run) == {
        *("hunter22", 'abc"def', "token-of-env", "key-of-trial", "urlpass1", "joined22")
    }


def test_value_of_a_secret_option_is_masked_in_a_command() -> None:
    command = ["train.py", "--password", "hunter22", "--lr", "0.1", "--token", "--password"]
    assert Mask().document({"command": command}) == {
        "command": ["train.py", "--password", "***", "--lr", "0.1", "--token", "--password"]
    }
