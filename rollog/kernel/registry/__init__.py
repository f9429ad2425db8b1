"""A schema registry beside the broker: records in Confluent's wire format for everybody who reads the topics.

client.py         one registry over HTTP, bounded in time and size
wire_format.py    a zero byte, four bytes of schema id, the body; and back
subjects.py       which schema stands under which subject
registration.py   registers and compares the subjects of a run
schema_ids.py     from fingerprints to ids and back, each asked for once
framed_broker.py  a broker whose records are framed by ids on the log and by fingerprints for whoever uses it
"""

from __future__ import annotations
