"""What comes back in a curve with a fixed period."""

import numpy as np

from optdoctor.curves.level import Floats


def autocorrelation(values: Floats, lags: int) -> Floats:
    """[lags + 1]: of values with their mean taken off; 1 at lag 0, 0 throughout for a constant."""
    centred = values - values.mean()
    size = 1 << (2 * len(values) - 1).bit_length()
    power = np.fft.irfft(np.abs(np.fft.rfft(centred, size)) ** 2, size)[: lags + 1]
    return power / power[0] if power[0] > 0 else np.zeros(lags + 1)
