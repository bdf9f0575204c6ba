"""Plan and train: ``python train.py``; ``python train.py memplan=null`` trains without a plan."""

import hydra
import lightning.pytorch as pl
from hydra.utils import instantiate

from memplan.integrations.lightning import MemplanCallback, tune


@hydra.main(version_base=None, config_path="configs", config_name="train")
def main(config):
    pl.seed_everything(0)
    data, model = instantiate(config.data), instantiate(config.model)
    settings, callbacks = dict(config.trainer), []
    if config.memplan is not None:
        settings, plan = tune(settings, model, datamodule=data, **config.memplan)
        callbacks = [MemplanCallback(plan)]
        print(*plan.reasons, sep="\n")
        print(f"Trainer({', '.join(f'{name}={value!r}' for name, value in settings.items())})")
    trainer = pl.Trainer(**settings, callbacks=callbacks)
    trainer.fit(model, datamodule=data)
    rate = model.hparams.optimizer.keywords["lr"]
    loss = trainer.callback_metrics["loss"]
    print(f"batch {data.hparams.batch_size}, rate {rate:g}: loss {loss:.3f} after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
