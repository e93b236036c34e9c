"""Errors become one message and the exit code that says what to do next."""

import errno

import pytest

from components.contracts.errors import (
    ERROR_FILE_VARIABLE,
    FencedError,
    InputError,
    PermanentError,
    RetryableError,
    StalledError,
    TerminatedError,
    error_for,
    is_retryable,
    run_main,
)

KINDS = [
    (InputError, 64),
    (PermanentError, 70),
    (TerminatedError, 143),
    (RetryableError, 200),
    (StalledError, 201),
    (FencedError, 202),
]


@pytest.mark.parametrize(("kind", "code"), KINDS)
def test_each_error_has_its_exit_code_and_leaves_its_message(
    kind, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv(ERROR_FILE_VARIABLE, str(tmp_path / "error"))

    def main():
        raise kind("what to do")

    assert run_main(main) == code
    assert capsys.readouterr().err == "error: what to do\n"
    assert (tmp_path / "error").read_text() == "what to do"
    assert type(error_for(code, "x")) is kind
    assert is_retryable(code) == (code >= 128)


def test_a_fault_of_ours_keeps_its_traceback(capsys):
    assert run_main(lambda: 1 / 0) == 70
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "error: ZeroDivisionError" in shown


def test_a_full_disk_is_explained(capsys):
    def main():
        raise OSError(errno.ENOSPC, "No space left on device", "/data/shard")

    assert run_main(main) == 70
    shown = capsys.readouterr().err
    assert "no space left" in shown
    assert "/data/shard" in shown
    assert "Traceback" not in shown


def test_killed_processes_are_retryable():
    assert is_retryable(-9)
    assert not is_retryable(1)
    assert error_for(99, "user code").exit_code == 99
