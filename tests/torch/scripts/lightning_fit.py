"""A model that Lightning trains, on a process group that the strategy names.

torchrun --standalone --nproc-per-node 2 lightning_fit.py gloo
"""

import json
import sys

import lightning
import nets
import together
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[1] == "psframe":
    import psframe.torch  # noqa: F401  (makes the name known)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.losses = nets.Normed(), []

    def training_step(self, batch, _):
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        self.log("validation", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(7)
data = TensorDataset(torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))
model = Classifier()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=lightning.pytorch.strategies.DDPStrategy(process_group_backend=sys.argv[1]),
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(model, DataLoader(data, 8), DataLoader(data, 32))
told = {"losses": model.losses, "parameters": together.digest(model.parameters())}
told["metrics"] = {key: value.item() for key, value in trainer.callback_metrics.items()}
every = [None] * dist.get_world_size()
dist.all_gather_object(every, told)
if dist.get_rank() == 0:
    print(
        json.dumps(
            {"backend": dist.get_backend(), "cases": {"fit": {key: [each[key] for each in every] for key in told}}}
        )
    )
dist.destroy_process_group()
