"""What a training pays for: neither `evaluate` nor scikit-learn is loaded until something is scored."""

import subprocess
import sys

import pytest


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_predicting_loads_no_metric_library():
    done = python("import sys, kdcore.evaluation.predict, kdcore.evaluation.metrics\n"
                  "print([m for m in ('evaluate', 'sklearn', 'scipy.stats', 'matplotlib') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_a_fresh_process_scores_without_network():
    """Importing `evaluate` must not want the hub either."""
    done = python("import socket\n"
                  "def refuse(*a, **k): raise AssertionError('network')\n"
                  "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
                  "import numpy as np\n"
                  "from kdcore.evaluation.evaluate_modules import measure\n"
                  "print(measure('accuracy', np.array([1, 0]), np.array([1, 1])).value)")
    assert done.stdout.strip() == "0.5", done.stderr
