"""Hook implementations, for `engine.host.register(Hooks())`."""

from engine_core import hookimpl

from .journal import journal


class Hooks:
    """Implements hooks with each of pluggy's options, and asks for each argument of hook API 1."""

    @hookimpl
    def batch_end(self, event, state, logger, traces):
        journal.append(f"Hooks at {event}: {' '.join(f'{t.name}={t.exit_code}#{t.order}' for t in traces.values())}")
        logger.log_metrics({"api1/hooks": 1}, step=state.timestamp.batch)

    @hookimpl(tryfirst=True, specname="batch_end")
    def before_the_others(self, traces):
        journal.append("Hooks first")

    @hookimpl(trylast=True, specname="batch_end")
    def after_the_others(self, event):
        journal.append("Hooks last")

    @hookimpl(wrapper=True)
    def after_dataloader(self, state, traces):
        journal.append(f"Hooks around: {len(traces)} traces")
        result = yield
        journal.append(f"Hooks around: {len(traces)} traces")
        return result

    @hookimpl(optionalhook=True)
    def after_everything(self):
        journal.append("there is no such event in hook API 1")
