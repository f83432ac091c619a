"""
A map of the brain
==================

Simulated scans of three subjects: a session is a client. The model separates faces from houses with few voxels.
"""

from nilearn import plotting

from fco_cli.api import run
from fco_cli.reporting.figures.brain import read_weights

record = run("task=fmri_sim", "task.train_subjects=2", "regularizer.strength=0.02", "hparams.rounds=100")
plotting.plot_stat_map(read_weights(record.folder), bg_img=None, display_mode="z", cut_coords=5, black_bg=False)
print(f"accuracy {record.final['validation_accuracy']:.2f}, density {record.final['density']:.3f}")
