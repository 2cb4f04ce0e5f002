"""How much of a draft to verify, and whether to draft at all."""

from specdec_jax._schedule_types import Choice as Choice
from specdec_jax._schedule_types import Schedule as Schedule
from specdec_jax.schedule._best_width import BestWidth as BestWidth
from specdec_jax.schedule._calibration import Calibration as Calibration
from specdec_jax.schedule._calibration import Profile as Profile
from specdec_jax.schedule._calibration import Score as Score
from specdec_jax.schedule._cost import CostTable as CostTable
from specdec_jax.schedule._cost import Work as Work
from specdec_jax.schedule._early_stop import EarlyStop as EarlyStop
from specdec_jax.schedule._fingerprint import Fingerprint as Fingerprint
from specdec_jax.schedule._fixed import FixedWidth as FixedWidth
from specdec_jax.schedule._lagged import LaggedBudget as LaggedBudget
from specdec_jax.schedule._survival import survival as survival
from specdec_jax.schedule._switch import Switch as Switch
