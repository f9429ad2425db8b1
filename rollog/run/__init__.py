"""A run as a whole: made, joined, supervised, watched, summed up.

request.py          what a command line asks for; connection.py: the broker it means
creation.py         a new run: demo files, topics, manifest; names.py, preparation.py
joining.py          a run that exists: its manifest, its settings here, its broker; role_settings.py: what a role needs
manifest_check.py   which of a run's manifests counts: the one that stands in genesis
role_process.py     one role in this process
local_run.py        all roles of a run on this machine; supervisor.py, restart_policy.py
whole_run.py        a new run from its settings to its end; reward_reference.py: a reward function of a script
resuming.py         going on under changed settings
watching.py         following a run; display.py and view.py show it, conclusion.py and summary.py end it
recorded_run.py     a recorded run or an archive, to be read; replaying.py, replay_report.py, recorded_advantages.py
auditing.py         an opened run, audited
verifying.py        recorded log-probabilities computed again
run_list.py         the runs of a broker; disk_use.py; deletion.py: deleting one, own_weights.py: its files of a store
pruning.py          deleting samples that nothing needs; retention.py: which these are
machine_check.py    what is missing on this machine
"""
