"""Everything that reads a run for people, and the readers it is made of. Nothing here decides anything.

progress.py         how a run is going: what `up`, `resume`, `top` and summaries show
lineage.py          where a sample, step, version or prompt comes from and what became of it
durations.py        what rollouts and training took; `plan --run` reads it
dead_letters.py     listing dead letters, and writing again those that can be used
archive.py          a run in one file             trained_samples.py  trained samples as a dataset
evaluation.py       scores of held-out prompts    ledger.py           the ledger, its chain verified
recorded_steps.py   training steps and verdicts as rows     tables.py   rows as Arrow, pandas, datasets
references.py       samples by the references of the ledger
audit/              I1 to I6, I11, I12 checked on the log, without the rules that wrote it
verification/       recorded log-probabilities compared with those that a model computes again
"""
