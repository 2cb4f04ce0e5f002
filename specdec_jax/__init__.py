"""Speculative decoding in JAX: the target's own text in fewer forward passes."""

from specdec_jax._check import Divergence as Divergence
from specdec_jax._check import LosslessReport as LosslessReport
from specdec_jax._check import check_lossless as check_lossless
from specdec_jax._check import check_target as check_target
from specdec_jax._compile import Compiled as Compiled
from specdec_jax._compile import Memory as Memory
from specdec_jax._compile import compile as compile
from specdec_jax._generate import Generation as Generation
from specdec_jax._generate import GenerationError as GenerationError
from specdec_jax._generate import generate as generate
from specdec_jax._generate import stream as stream
from specdec_jax._grow import GrownTree as GrownTree
from specdec_jax._grow import StaticTree as StaticTree
from specdec_jax._options import Sampling as Sampling
from specdec_jax._sharding import shard as shard
from specdec_jax._state import copy as copy
from specdec_jax._state import grow as grow
from specdec_jax._types import Params as Params
from specdec_jax.drafters import DraftModel as DraftModel
from specdec_jax.drafters import Eagle as Eagle
from specdec_jax.drafters import Eagle3 as Eagle3
from specdec_jax.drafters import NGram as NGram
from specdec_jax.drafters import Plain as Plain
from specdec_jax.targets import Toy as Toy
from specdec_jax.text import LanguageModel as LanguageModel
from specdec_jax.text import load as load
