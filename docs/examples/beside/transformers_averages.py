"""The averaged weights of a checkpoint of EngineTrainer, as a model that `from_pretrained` reads."""

from pathlib import Path

from transformers import AutoModelForSequenceClassification

from engine_core.loop import read_state

folder = Path("checkpoints/checkpoint-72")  # or trainer.state.best_model_checkpoint
model = AutoModelForSequenceClassification.from_pretrained(folder)
model.load_state_dict(read_state(folder)["algorithms"]["EMA"]["average"])
model.save_pretrained("averaged")
