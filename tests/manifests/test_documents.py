"""What the documents tell a newcomer to type exists, and works as far as it can here."""

import re
import shlex
import subprocess
import sys

import pytest
import yaml

from tests.manifests.conftest import ROOT, built

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/**/README.md")])
DOCUMENTS = [f for f in DOCUMENTS if not any(p.startswith(".") for p in f.relative_to(ROOT).parts)]


def commands(name):
    """The lines of the indented blocks of a document."""
    lines = (ROOT / name).read_text().splitlines()
    return [line.strip() for line in lines if re.match(r" {4}\S", line)]


INSTALL = [
    command
    for line in commands("docs/install.md") + commands("docs/kfp-retries.md")
    for command in line.split("; ")
]


def test_there_are_commands():
    assert len(INSTALL) >= 12


@pytest.mark.parametrize("command", INSTALL)
def test_a_command_of_the_installation_fits_what_is_committed(command):
    words = shlex.split(command)
    for flag, value in zip(words, words[1:], strict=False):
        if flag == "-k" and not value.startswith("github.com/"):
            assert built(value)
        if flag == "--patch-file":
            assert yaml.safe_load((ROOT / value).read_text())
    program = [word for word in words if "=" not in word][0]
    if program == "make":
        subprocess.run(["make", "-n", *words[words.index("make") + 1 :]], cwd=ROOT, check=True)


def test_the_compiled_pipeline_names_the_registry_that_the_installation_sets():
    [command] = [c for c in INSTALL if c.endswith("make compile")]
    variables = dict(word.split("=") for word in shlex.split(command) if word.startswith("RELAY"))
    code = (
        "from pipelines.compile import compiled\n"
        "from pipelines.train_and_export import train_and_export as p\n"
        "print(compiled(p))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    images = set(re.findall(r"^ +image: (\S+/\S+)$", done.stdout, re.MULTILINE))
    assert images
    assert all(image.startswith("registry.example/team/relay-") for image in images)
    assert all(image.endswith(":1.0") for image in images)


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_leads_to_a_file(file):
    for target in re.findall(r"\]\(([^)#]+)", file.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (file.parent / target).exists(), target
