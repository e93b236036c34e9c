"""The recurring pipeline, run after run over one export root."""

import json
import random


def add_rows(folder, name, seed, *, columns="a,b,label"):
    generator = random.Random(seed)
    lines = [columns]
    for _ in range(800):
        a, b = generator.gauss(0, 1), generator.gauss(0, 1)
        extra = ",1" if columns.count(",") > 2 else ""
        lines.append(f"{a:.4f},{b:.4f},{int(a - b + generator.gauss(0, 0.3) > 0)}{extra}")
    (folder / name).write_text("\n".join(lines) + "\n")


def test_each_run_learns_from_what_is_new_and_follows_and_beats_the_champion(
    run_local, summary_of, tmp_path
):
    data = tmp_path / "data"
    data.mkdir()
    add_rows(data, "monday.csv", 1)
    latest = tmp_path / "workspace" / "models" / "latest.json"

    def retrain():
        done = run_local(pipeline="retrain_and_promote", data_source=str(data), epochs=6)
        assert done.returncode == 0, done.stdout + done.stderr
        return done, summary_of()

    _, first = retrain()
    assert first["verdict"] == "passed"
    assert json.loads(latest.read_text())["version"] == 1

    done, idle = retrain()
    assert "nothing new" in done.stdout
    assert idle["dataset_uri"] == idle["model_uri"] == ""
    assert set(idle["seconds"]) == {"make-tfrecords"}

    add_rows(data, "odd.csv", 3, columns="a,b,label,surprise")
    refused = run_local(pipeline="retrain_and_promote", data_source=str(data / "odd.csv"))
    assert refused.returncode == 64
    assert "+ surprise" in refused.stdout + refused.stderr
    assert summary_of()["failed_task"] == "make-tfrecords"

    (data / "odd.csv").unlink()
    add_rows(data, "tuesday.csv", 2)
    _, second = retrain()
    assert second["dataset_uri"] != first["dataset_uri"]
    report = json.loads((tmp_path / second["report_uri"] / "report.json").read_text())
    assert report["champion"]["version"] == 1
    champion = json.loads(latest.read_text())
    scores = {1: report["champion"]["metrics"]["auc"], 2: report["metrics"]["auc"]["value"]}
    assert champion["version"] == max(scores, key=lambda version: (scores[version], -version))
