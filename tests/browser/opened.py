"""A page in Chromium, with what it complains of, what it asks for, and what axe-core finds."""

from __future__ import annotations

from typing import Any

SERIOUS = ("serious", "critical")


# Boxes of texts as they are turned, parted by an axis of either if they lie apart.
_OVERLAPS = """() => {
  const corners = (text) => {
    const box = text.getBBox(), at = text.getScreenCTM();
    // A line is lower than its box: letters reach from its second to its last fifth.
    const [top, bottom] = [box.y + 0.2 * box.height, box.y + 0.8 * box.height];
    const [left, right] = [box.x + 1, box.x + box.width - 1];
    return [[left, top], [right, top], [right, bottom], [left, bottom]].map(
      ([x, y]) => [at.a * x + at.c * y + at.e, at.b * x + at.d * y + at.f]);
  };
  const apart = (one, other, [ax, ay], [bx, by]) => {
    const [nx, ny] = [bx - ax, by - ay];
    const along = (points) => points.map(([x, y]) => x * nx + y * ny);
    const [a, b] = [along(one), along(other)];
    return Math.max(...a) <= Math.min(...b) || Math.max(...b) <= Math.min(...a);
  };
  const meet = (one, other) => ![one, other].some((box) =>
    apart(one, other, box[0], box[1]) || apart(one, other, box[0], box[3]));
  const found = [];
  for (const svg of document.querySelectorAll(".chart svg")) {
    const name = svg.closest(".chart").dataset.chart;
    const texts = [...svg.querySelectorAll("text")].filter(
      (one) => one.textContent.trim() && Number(getComputedStyle(one).opacity) > 0);
    const boxes = texts.map((one) => [one.textContent, corners(one)]);
    boxes.forEach(([one, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
      if (meet(a, b)) found.push(`${name}: "${one}" on "${other}"`);
    }));
  }
  return found;
}"""


# Texts of marks that a line of a mark goes through: a limit, a whisker.
_STRUCK = """() => {
  const found = [];
  for (const svg of document.querySelectorAll(".chart svg")) {
    const name = svg.closest(".chart").dataset.chart;
    const lines = [...svg.querySelectorAll(".mark-rule.role-mark line")].map(
      (line) => line.getBoundingClientRect());
    for (const text of svg.querySelectorAll(".mark-text.role-mark text")) {
      if (!text.textContent.trim()) continue;
      const box = text.getBoundingClientRect();
      const [top, bottom] = [box.top + 0.3 * box.height, box.bottom - 0.3 * box.height];
      if (lines.some((line) => line.left < box.right - 2 && line.right > box.left + 2 &&
          line.top < bottom && line.bottom > top))
        found.push(`${name}: "${text.textContent}"`);
    }
  }
  return found;
}"""


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

    def overlaps(self) -> list[str]:
        """Pairs of texts of a picture that lie on each other by more than a pixel or two."""
        found: list[str] = self.page.evaluate(_OVERLAPS)
        return found

    def struck(self) -> list[str]:
        """Words of a picture that one of its lines goes through."""
        found: list[str] = self.page.evaluate(_STRUCK)
        return found

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
