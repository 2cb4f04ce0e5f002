"""What is being served: interchangeable behind `Target`."""

from specdec_jax.targets._llama import llama_from_gguf as llama_from_gguf
from specdec_jax.targets._module import ModuleTarget as ModuleTarget
from specdec_jax.targets._toy import Toy as Toy
