"""Search two values of the example's config with Optuna, which gives up trials that fall behind."""

import optuna

from engine_core import Callback, Logger, State
from engine_core.config import load_config
from engine_core.examples import find_example
from engine_core.run import make_trainer

FIXED = ["trainer.max_duration=2ep", "trainer.progress_bar=false"]


class Pruning(Callback):
    """Tells Optuna how a trial goes, and ends it where Optuna gives it up."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial = trial

    def eval_end(self, state: State, logger: Logger) -> None:
        self.trial.report(state.metrics["eval/loss"], state.timestamp.epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def objective(trial: optuna.Trial) -> float:
    """Train with the values that Optuna proposes, and return how good they are."""
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    keep = trial.suggest_float("keep", 0.3, 1.0)
    changes = [f"optimizer.args.lr={lr}", f"algorithms[selective_backprop].args.keep={keep}"]
    config = load_config(find_example("digits"), [*FIXED, *changes])
    with make_trainer(config, callbacks=[Pruning(trial)]) as trainer:
        trainer.fit()
    return trainer.state.results.last["eval/loss"]


search = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1), pruner=optuna.pruners.MedianPruner(5))
search.optimize(objective, n_trials=10)
print(search.best_params)
