"""TensorFlow Serving's model configuration for the champion.

TensorFlow Serving alone would serve the highest number it finds. This configuration names the
version, and a server that polls it (`--model_config_file_poll_wait_seconds`) follows promotions and
roll-backs. The form is the text format of tensorflow_serving.config.ModelServerConfig.
"""

MODEL_NAME = "relay"
DIRECT = "serving/tensorflow-serving.config"
KSERVE = "serving/kserve.config"
# Where KServe's storage initializer puts a copy of the export root.
KSERVE_MOUNT = "/mnt/models"

_TEMPLATE = """\
model_config_list {{
  config {{
    name: "{name}"
    base_path: "{base_path}"
    model_platform: "tensorflow"
    model_version_policy {{ specific {{ versions: {version} }} }}
  }}
}}
"""


def config_files(root_uri: str, version: int) -> dict[str, str]:
    """Object name to text: for a server that reads the root itself, and for KServe's copy of it."""
    return {
        DIRECT: _TEMPLATE.format(name=MODEL_NAME, base_path=root_uri, version=version),
        KSERVE: _TEMPLATE.format(name=MODEL_NAME, base_path=KSERVE_MOUNT, version=version),
    }
