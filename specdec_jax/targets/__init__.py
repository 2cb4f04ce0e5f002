"""What is being served: interchangeable behind `Target`."""

from specdec_jax.targets._folder import from_folder as from_folder
from specdec_jax.targets._gguf import from_gguf as from_gguf
from specdec_jax.targets._module import ModuleTarget as ModuleTarget
from specdec_jax.targets._presets import PRESETS as PRESETS
from specdec_jax.targets._presets import preset as preset
from specdec_jax.targets._toy import Toy as Toy
