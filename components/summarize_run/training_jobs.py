"""Training jobs that a terminated launcher could not delete: it lives 0.6 s after the signal."""

import os

import urllib3
from kubernetes import client as k8s
from kubernetes import config as k8s_config

from components.contracts.job_names import GROUP, PLURAL, RUN_LABEL, VERSION, run_label

_REQUEST_TIMEOUT = (5.0, 30.0)


def delete_jobs_of(run: str, namespace: str) -> list[str]:
    """Delete the training jobs of a run that are not finished.

    Args:
        run: what the run is called.
        namespace: of the jobs.

    Returns:
        Names of the deleted jobs.
    """
    k8s_config.load_config()
    jobs = k8s.CustomObjectsApi()
    where = (GROUP, VERSION, namespace, PLURAL)
    found = jobs.list_namespaced_custom_object(
        *where, label_selector=f"{RUN_LABEL}={run_label(run)}", _request_timeout=_REQUEST_TIMEOUT
    )
    names = [item["metadata"]["name"] for item in found["items"] if not _succeeded(item)]
    for name in names:
        jobs.delete_namespaced_custom_object(*where, name, _request_timeout=_REQUEST_TIMEOUT)
    return names


def clean_up(run: str) -> str:
    """Delete a run's jobs where this is a cluster; returns what there is to say about it."""
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return ""
    try:
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
            names = delete_jobs_of(run, file.read().strip())
    except (k8s.ApiException, k8s_config.ConfigException, urllib3.exceptions.HTTPError) as error:
        return f"the run's training jobs could not be looked for: {error}"
    except OSError:
        return ""
    return f"deleted training jobs that were left: {', '.join(names)}" if names else ""


def _succeeded(job: dict[str, object]) -> bool:
    status = job.get("status")
    conditions = status.get("conditions") or [] if isinstance(status, dict) else []
    return any(c["type"] == "Succeeded" and c["status"] == "True" for c in conditions)
