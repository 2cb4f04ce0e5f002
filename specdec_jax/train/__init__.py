"""Training drafters on the target's own answers."""

from specdec_jax._lesson import Lesson as Lesson
from specdec_jax._lesson import Loss as Loss
from specdec_jax._lesson import Objective as Objective
from specdec_jax.train._block_distillation import (
    BlockDistillation as BlockDistillation,
)
from specdec_jax.train._block_filling import BlockFilling as BlockFilling
from specdec_jax.train._corpus import Corpus as Corpus
from specdec_jax.train._corpus import load_corpus as load_corpus
from specdec_jax.train._corpus import save_corpus as save_corpus
from specdec_jax.train._curves import plot_curves as plot_curves
from specdec_jax.train._curves import read_metrics as read_metrics
from specdec_jax.train._events import Evaluated as Evaluated
from specdec_jax.train._events import Event as Event
from specdec_jax.train._events import Filled as Filled
from specdec_jax.train._events import Trained as Trained
from specdec_jax.train._events import TrainingError as TrainingError
from specdec_jax.train._fit import Fitted as Fitted
from specdec_jax.train._fit import fit as fit
from specdec_jax.train._fit import load_best as load_best
from specdec_jax.train._optimizer import Optimizer as Optimizer
from specdec_jax.train._recipe import Data as Data
from specdec_jax.train._recipe import Evaluation as Evaluation
from specdec_jax.train._recipe import Recipe as Recipe
from specdec_jax.train._recipe import described as described
from specdec_jax.train._regenerate import Answered as Answered
from specdec_jax.train._regenerate import Asked as Asked
from specdec_jax.train._regenerate import regenerate as regenerate
from specdec_jax.train._regression import FeatureRegression as FeatureRegression
from specdec_jax.train._simulate import simulate as simulate
from specdec_jax.train._step import Metrics as Metrics
from specdec_jax.train._step import TrainState as TrainState
from specdec_jax.train._step import TrainStep as TrainStep
from specdec_jax.train._step import init_state as init_state
from specdec_jax.train._step import make_train_step as make_train_step
from specdec_jax.train._unrolled import TrainingTimeTest as TrainingTimeTest
