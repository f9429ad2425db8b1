"""The rollout worker: tasks in, samples out, weights reloaded in between.

role.py         `rollog rollout`: engine, tokenizer, rewards and store from settings
session.py      the rules, as a state machine: it takes what happened and returns actions.py
worker.py       the effects: one asyncio loop that reads, acts on the session's actions, and sends
reloading.py    what happens when weights arrive (downloads.py fetches their files)
agents.py       sessions of an agent in place of one response; agent_sessions.py is one of them
rollouts.py     one rollout from prompt to scored sample; prompts.py, resumption.py, outcomes.py are its parts
turn_log.py     turns, written before they are used; turn_reader.py and found_turns.py read those of an attempt before
reader.py       what is read                    sender.py   what is sent, with bounded bytes in flight
tasks.py        whether a task fits the run     publishing.py  samples as records     reporting.py  heartbeats
"""

from __future__ import annotations
