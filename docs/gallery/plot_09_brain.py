"""
A map of the brain
==================

Simulated scans of three subjects: a session is a client. The model separates faces from houses with few voxels.
"""

from fco_cli.api import run
from fco_cli.reporting import collect
from fco_cli.reporting.figures.brain import draw_slices, read_image, read_weights

record = run("task=fmri_sim", "task.train_subjects=2", "regularizer.strength=0.02", "hparams.rounds=100")
(study,) = collect([record.folder]).studies
mask, truth = (read_image(record.folder / f"{name}.nii.gz") for name in ("mask", "truth"))
figure = draw_slices(study, {"FedDualAvg": read_weights(record.folder)}, mask, truth)
print(f"accuracy {record.final['validation_accuracy']:.2f}, density {record.final['density']:.3f}")
