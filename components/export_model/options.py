"""Options of the export step."""

from dataclasses import dataclass

from components.contracts.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to publish, and when it becomes the champion.

    Attributes:
        dataset_uri: committed dataset that the model was trained on.
        run_uri: the training run.
        report_uri: evaluation of the checkpoint.
        checkpoint: step to export; it must be the evaluated one. Empty: the evaluated one.
        require_passed: refuse a model whose evaluation did not pass.
        parity_rows: rows whose served outputs are compared with the training path's.
        tolerance: largest difference allowed between them; 0: chosen by the compute precision,
            1e-5 for float32.
        promote_metric: metric that decides between this version and the champion (-log_loss:
            smaller is better); empty: by task auc, accuracy or -rmse.
        promote: whether this version may become the champion.
        keep_versions: newest versions to keep beside the champion and those it can be rolled back
            to; 0: all.
        keras_copy: keep a .keras file for further training beside the version, where it can be
            loaded again.
    """

    dataset_uri: str
    run_uri: str
    report_uri: str
    checkpoint: str = ""
    require_passed: bool = True
    parity_rows: int = 256
    tolerance: float = 0.0
    promote_metric: str = ""
    promote: bool = True
    keep_versions: int = 10
    keras_copy: bool = True

    def __post_init__(self) -> None:
        """Raises InputError for values that cannot work."""
        for name in ("dataset_uri", "run_uri", "report_uri"):
            if not getattr(self, name):
                raise InputError(f"option {name} is empty")
        if self.checkpoint and not self.checkpoint.isdigit():
            raise InputError(
                f"option checkpoint: received {self.checkpoint!r}, expected the step that was "
                "evaluated, or nothing"
            )
        if self.parity_rows < 1:
            raise InputError(f"option parity_rows: received {self.parity_rows}, expected 1 or more")
        if self.keep_versions < 0 or self.tolerance < 0:
            raise InputError(
                f"options keep_versions, tolerance: received {self.keep_versions}, "
                f"{self.tolerance}, expected 0 or more"
            )
