"""The dispatcher: turns prompts into tasks, gives grants, cancels. Its state is a function of the log.

role.py         `rollog dispatch`: load the prompts, take the run over, dispatch
startup.py      what happens on a take-over: epoch, fences, state from the log (history.py), live grants repeated
dispatcher.py   one turn: read, end leases, cancel, issue; how a run ends
issuing.py      which tasks go out now, to whom; with credits.py (slots), rollog/rules/admission.py (how many groups),
                tasks.py (what a task says), rounds.py (batch scheduling), dataset.py (prompts and their order)
leases.py       heartbeats, grants, lost tasks; with workers.py (what is known of each worker)
state.py        everything known, folded from the log; with group_tracker.py and evaluation_tracker.py
reader.py       from records to the state      sender.py   from decisions to records
"""
