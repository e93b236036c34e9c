"""The only place that names container images.

RELAY_IMAGE_REGISTRY and RELAY_IMAGE_TAG are read when a pipeline is compiled, so that a platform
team compiles for its own registry. The names contain "python", which kfp.local asks for.
"""

import os

REGISTRY = os.environ.get("RELAY_IMAGE_REGISTRY", "ghcr.io/relay-training")
TAG = os.environ.get("RELAY_IMAGE_TAG", "0.1.0")

# Small: contracts, storage and the launcher, no TensorFlow.
LAUNCHER = f"{REGISTRY}/relay-launcher-python:{TAG}"
# TensorFlow and every step.
TENSORFLOW = f"{REGISTRY}/relay-tensorflow-python:{TAG}"
