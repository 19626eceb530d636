"""The Session class, and what its calls decide.

session           the public class: what a script calls, in its order
ranks             who the ranks are; sums, means and lines that are printed on rank 0
models            recompute, load and export models as a whole
progress          epochs, loaders and registered objects; when they are saved, and restored
gradients         setup and backward: gradients that do not depend on the number of ranks
loss_weight       how much a loss counts in a step, and whether it is a mean over rows
gathering         rows of all ranks in order, also for a backward
once              a function that one rank runs for all
stopping          the clean stop at a signal, and the end of a script
run_folder        which folder has checkpoints and logs, and whose it is
restoring         which checkpoint a session resumes from, and what is said of a damaged one
weights           which weights of a file belong to which keys of a model
averaging         the moving average of parameters
scaling           the learning rate for a larger batch
loader_context    what a loader needs of its session
checks            what a session refuses: models, optimizers, losses, options
few_rows          batches of which a rank has one row or none
rank_check        whether ranks still hold the same parameters, and when that is compared
step_guard        optimizer steps that would let ranks drift apart
foreign_backward  gradients of a backward that no session has seen, or of a copied model
limits            what makes results depend on the number of ranks
"""

from paceline.train.session.gradients import Gradients
from paceline.train.session.session import Session

__all__ = ["Gradients", "Session"]
