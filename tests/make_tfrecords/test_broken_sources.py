"""Broken sources of every kind end in one readable message, exit code 64, and nothing else."""

import json
import os

import pytest

from components.contracts.errors import EXIT_BAD_INPUT, run_main
from components.make_tfrecords.__main__ import main
from tests.make_tfrecords.broken_sources import SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_a_broken_source_is_refused_in_one_message(name, tmp_path, capsys):
    broken = SOURCES[name]
    source_folder, workspace, output = (tmp_path / part for part in ("in", "tmp", "out"))
    source_folder.mkdir()
    workspace.mkdir()
    options = {"splits": {"all": 1.0}, "processes": 1, **broken.options}
    flags = [
        f"--{key.replace('_', '-')}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in options.items()
    ]
    source = broken.make(source_folder)
    arguments = [f"--source={source}", "--label=label", f"--output-uri={output}", *flags]
    code = run_main(lambda: main([*arguments, f"--workspace={workspace}"]))
    captured = capsys.readouterr()
    assert code == EXIT_BAD_INPUT, captured.err
    message = captured.err[captured.err.index("error: ") :]
    assert captured.err.count("error: ") == 1
    assert "Traceback" not in captured.err
    for text in broken.says:
        assert text in message
    assert not captured.out
    assert [path for path in output.rglob("*") if path.is_file()] == []
    assert os.listdir(workspace) == []
