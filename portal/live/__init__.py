"""Live pages: what changed in a cell, pushed to the browsers that look at it.

    journal ─ notice or poll ─► hub (a thread a process) ─ once a page ─► fragments ─► every viewer's outbox ─► socket

    journal ─ notice or poll ─► names hub ─► what changed of a name ─► WebSockets (`watch`) and held requests (`polls`)

`topics` say what a page shows and render what changed; `hub` follows the journal for the cells that have
viewers; `consumers` check who may watch and carry messages. The page's half is in `static/portal/sigma.js`.
"""
