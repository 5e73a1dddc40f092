"""The test run itself checks shapes: a wrong one fails here, where a plain run would broadcast."""

import jaxtyping
import pytest
import torch

from kdcore import losses


def test_a_wrong_shape_is_refused():
    with pytest.raises(jaxtyping.TypeCheckError):
        losses.kd_loss(torch.zeros(4, 3), torch.zeros(4, 2), 1.0, False)
