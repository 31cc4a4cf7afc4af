"""A page in Chromium, with what it complains of, what it asks for, and what axe-core finds."""

from __future__ import annotations

from typing import Any

SERIOUS = ("serious", "critical")


class Opened:
    """A page that is open; `home`: what its requests may begin with."""

    def __init__(
        self, browser: Any, address: str, width: int, scheme: str = "light", home: str = "file:"
    ) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.set_default_timeout(120_000)
        self.complaints: list[str] = []
        self._home = home
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)
        self.page.goto(address)
        self.page.wait_for_selector(".chart svg")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self._home, "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")

    def draw_all(self) -> None:
        """Wait until every figure that can be seen is drawn."""
        for place in self.page.locator(".chart:visible").all():
            place.locator("svg").first.wait_for()

    def serious(self) -> list[str]:
        """What axe-core finds that is serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{item['id']}: {item['help']}: {node['html'][:200]}"
            for item in found
            if item["impact"] in SERIOUS
            for node in item["nodes"]
        ]

    def numbers(self) -> list[str]:
        """Numbers of the plans in the list."""
        options = self.page.locator("#plan option").all()
        return [option.get_attribute("value") for option in options]

    def shown_plan(self) -> str:
        """Number of the plan whose sections are to be seen."""
        seen = self.page.locator("section[data-plan]:visible")
        (number,) = {opened.get_attribute("data-plan") for opened in seen.all()}
        return str(number)
