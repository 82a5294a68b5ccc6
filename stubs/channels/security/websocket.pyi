from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer

class WebsocketDenier(AsyncWebsocketConsumer): ...

def AllowedHostsOriginValidator(application: Any) -> Any: ...
