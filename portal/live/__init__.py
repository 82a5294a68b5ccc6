"""Live pages: the portal sends the changes of a cell to the browsers that show the cell.

    journal ─ wake-up or poll ─► hub (a thread) ─ once per page ─► parts of HTML ─► outbox of each viewer ─► WebSocket

    journal ─ wake-up or poll ─► names hub ─► changes of a name ─► WebSockets (`name_watch`), requests (`long_polls`)

`page_changes` renders the changed parts of a page. `hub` reads new journal events of the cells that have viewers.
`consumers` checks the rights of the viewers and sends the messages. In the browser, `static/portal/sigma.js` runs.
"""
