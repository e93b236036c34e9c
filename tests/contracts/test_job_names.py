"""Names of training jobs: valid for any pipeline, run and model name, stable and distinct."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.contracts.job_names import job_name, run_label

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
RUN = "8f14e45f-ceea-467f-a8a2-1c1b7f0d3a11"


def uri(pipeline="delays", run=RUN, task="train-model", uuid="u1", name="run"):
    return f"gs://bucket/root/{pipeline}/{run}/{task}/{uuid}/{name}"


@pytest.mark.parametrize(
    "pipeline",
    [
        "a-really-long-name-that-nobody-should-choose-but-somebody-will-overflow-8b81e5",
        "9model",
        "my.model",
        "Über_Modell",
        "模型",
        "-",
        "UPPER CASE",
        "x" * 300,
    ],
)
def test_a_name_is_valid_with_every_suffix_the_operator_adds(pipeline):
    name = job_name(uri(pipeline))
    assert LABEL.fullmatch(name)
    assert len(f"{name}-worker-99999") <= 63
    assert len(name) <= 45


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_makes_a_valid_name_and_label(pipeline, run):
    assert LABEL.fullmatch(job_name(uri(pipeline, run)))
    value = run_label(run)
    assert LABEL_VALUE.fullmatch(value)
    assert len(value) <= 63


def test_a_name_is_the_same_on_every_attempt():
    assert job_name(uri()) == job_name(uri())


def test_names_differ_between_runs_tasks_loop_iterations_and_steps():
    long = "x" * 60
    names = [
        job_name(uri()),
        job_name(uri(run=RUN.replace("8", "9"))),
        job_name(uri(task="train-model-2")),
        job_name(uri(uuid="u2")),
        job_name(uri(name="other")),
        job_name(uri(pipeline=f"{long}a")),
        job_name(uri(pipeline=f"{long}b")),
    ]
    assert len(set(names)) == len(names)


def test_a_run_id_is_its_own_label():
    assert run_label(RUN) == RUN


def test_labels_of_different_runs_differ():
    assert run_label("run 1") != run_label("run-1")
    assert run_label("x" * 64) != run_label("x" * 65)
