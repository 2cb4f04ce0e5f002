"""What proposes: interchangeable behind `Drafter`."""

from specdec_jax.drafters._dflash import DFlash as DFlash
from specdec_jax.drafters._draft_model import DraftModel as DraftModel
from specdec_jax.drafters._dspark import DSpark as DSpark
from specdec_jax.drafters._eagle import Eagle as Eagle
from specdec_jax.drafters._eagle3 import Eagle3 as Eagle3
from specdec_jax.drafters._ngram import NGram as NGram
from specdec_jax.drafters._plain import Plain as Plain
