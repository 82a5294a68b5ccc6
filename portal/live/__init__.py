"""Live pages: the portal sends changes of a cell to the browsers that show it.

    journal ─ notice or poll ─► hub (a thread) ─ once per page ─► fragments ─► every viewer's outbox ─► socket

    journal ─ notice or poll ─► names hub ─► what changed of a name ─► WebSockets (`watch`) and held requests (`polls`)

`topics` render what changed on a page. `hub` follows the journal for the cells that have viewers. `consumers` check
the caller and carry messages. The browser's part is in `static/portal/sigma.js`.
"""
