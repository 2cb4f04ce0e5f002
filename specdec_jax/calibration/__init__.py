"""Making a drafter's confidence come true."""

from specdec_jax.calibration._calibrate import calibrate as calibrate
from specdec_jax.calibration._calibrate import judged_fit as judged_fit
from specdec_jax.calibration._collect import collect as collect
from specdec_jax.calibration._fit import Outcomes as Outcomes
from specdec_jax.calibration._fit import fit as fit
from specdec_jax.calibration._fit import join as join
from specdec_jax.calibration._plot import plot_reliability as plot_reliability
