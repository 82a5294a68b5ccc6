"""Live pages: the portal sends the changes of a cell to the browsers that show it.

    journal ─ wake-up or poll ─► hub (a thread) ─ once per page ─► parts of HTML ─► outbox of each viewer ─► WebSocket

    journal ─ wake-up or poll ─► names hub ─► changes of a name ─► WebSockets (`watch`) and waiting requests (`polls`)

`topics` renders what changed on a page. `hub` follows the journal for the cells that have viewers. `consumers` checks
the callers and sends the messages. The code in the browser is `static/portal/sigma.js`.
"""
