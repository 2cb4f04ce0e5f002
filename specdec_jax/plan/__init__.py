"""What a model needs, and what its steps cost, on chips that need not be there."""

from specdec_jax.plan._chips import CHIPS as CHIPS
from specdec_jax.plan._chips import Chip as Chip
from specdec_jax.plan._chips import Topology as Topology
from specdec_jax.plan._chips import topology as topology
from specdec_jax.plan._fit import check_memory as check_memory
from specdec_jax.plan._fit import check_mesh as check_mesh
from specdec_jax.plan._fit import choose_mesh as choose_mesh
from specdec_jax.plan._heads import HEAD_TOKENS as HEAD_TOKENS
from specdec_jax.plan._heads import dflash as dflash
from specdec_jax.plan._heads import dspark as dspark
from specdec_jax.plan._heads import eagle as eagle
from specdec_jax.plan._heads import eagle3 as eagle3
from specdec_jax.plan._report import Plan as Plan
from specdec_jax.plan._report import Step as Step
from specdec_jax.plan._report import plan as plan
from specdec_jax.plan._report import speed_up as speed_up
from specdec_jax.plan._sizes import Sizes as Sizes
from specdec_jax.plan._sizes import score_bytes as score_bytes
from specdec_jax.plan._sizes import sizes as sizes
from specdec_jax.plan._sizes import step_bytes as step_bytes
from specdec_jax.plan._sizes import token_bytes as token_bytes
