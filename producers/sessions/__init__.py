"""Sessions of agents: what the policy was asked and said, recorded as token ids, and the endpoint that serves it.

recorder.py     the rules of the record: which call extends which, what forks, what is trained; budgets.py beside it
recording.py    what a session comes to: sequences, turns, counts
rendering.py    which input is sent: recorded ids and what is new, or everything; glue.py learns what is put between
text_tokens.py  text as ids, in which messages make no special tokens    chat_template.py  a model's template
conversations.py  messages in one form, so that an echo is told from an edit
messages.py     turns as messages; vllm_messages.py by vLLM's parsers
recorded_calls.py  a session's calls in the worker: joined, generated, recorded
live.py         a session's requests in the endpoint: rendered, asked, answered; said.py what it has to know again
endpoint.py     the HTTP server; requests.py and responses.py are its protocol, endpoint_limits.py what it takes,
                rendering_thread.py its slow work in turns, quiet_errors.py what it says of errors
host.py         the process that serves it; wire.py what worker and process say to each other
process.py      that process kept up by the worker; serving.py one of them, listening.py where it listens
journal.py      turns that are on the log before they are answered; turn_chain.py those of an attempt before
"""
