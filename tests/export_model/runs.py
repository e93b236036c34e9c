"""From a trained run to its export."""

from components.evaluate_model.evaluate import evaluate_model
from components.evaluate_model.options import EvaluateOptions
from components.export_model.export import export_model
from components.export_model.options import ExportOptions


def evaluated(run, report_uri, **options):
    values = {"dataset_uri": run.data_uri, "run_uri": run.run_uri, **options}
    return evaluate_model(EvaluateOptions(**values), str(report_uri))


def exported(run, report_uri, root, **options):
    values = {
        "dataset_uri": run.data_uri,
        "run_uri": run.run_uri,
        "report_uri": str(report_uri),
        "keras_copy": False,  # a process of its own, ten seconds
    }
    return export_model(ExportOptions(**{**values, **options}), str(root))
