"""One model API from inside a sandbox without a network, through the host, over the wire.

tunnel.py                  what `sandbox.tunnel(...)` makes: its limits, and the threads of its requests
exchange.py                one request and its answer, on the host
policy.py, upstream.py     what may pass; the connection to the one server that is reached
record.py, usage.py        what is written of it; the tokens that answers report
masking.py                 keeps the host's secrets out of what the sandbox and the record see
inlet.py                   the sandbox's end: the loopback server. Standard library only, as are the two below
http1.py, streams.py       HTTP/1.1 as both ends read it; a request's frames
"""
