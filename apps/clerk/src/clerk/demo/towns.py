"""The municipalities of the demonstration. None of them exists, and nobody in them does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, Literal

Style = Literal["columns", "sentence", "counted", "called"]  # how a clerk there writes a vote down: clerk.demo.texts


@dataclass(frozen=True)
class Member:
    name: str
    title: str

    @property
    def last(self) -> str:
        return self.name.split()[-1]

    @property
    def short(self) -> str:
        return f"{self.title} {self.last}"

    @property
    def full(self) -> str:
        return f"{self.title} {self.name}"


@dataclass(frozen=True)
class Body:
    """Who meets: a council, a board, a commission. The first member presides."""

    name: str
    style: Style
    topic: str  # which matters come before it: clerk.demo.matters
    members: tuple[Member, ...]
    weekday: int  # Monday is 0
    weeks: tuple[int, ...]  # the first and third of the month: (1, 3)
    place: str
    time: str = "6:30 p.m."

    def days(self, year: int) -> Iterator[date]:
        """When it meets in that year."""
        for month in range(1, 13):
            first = date(year, month, 1)
            first += timedelta(days=(self.weekday - first.weekday()) % 7)
            yield from (first + timedelta(weeks=week - 1) for week in self.weeks)


@dataclass(frozen=True)
class Town:
    subdomain: str
    name: str
    state: str
    kind: str
    lat_lng: str
    bodies: tuple[Body, ...]
    staff: tuple[str, ...]
    streets: tuple[str, ...]
    schools: tuple[str, ...] = ()

    def body(self, name: str) -> Body:
        return next(body for body in self.bodies if body.name == name)


def _members(chair: str, vice: str, title: str, names: str) -> tuple[Member, ...]:
    titles = (chair, vice, *([title] * names.count(",")))
    return tuple(Member(name.strip(), title) for name, title in zip(names.split(","), titles, strict=False))


TOWNS: Final = (
    Town(
        "larkspurbend.ca",
        "City of Larkspur Bend",
        "CA",
        "city",
        "38.7134,-122.9028",
        (
            Body(
                "City Council",
                "columns",
                "council",
                _members(
                    "Mayor",
                    "Vice Mayor",
                    "Councilmember",
                    "Elena Reyes, Tobias Lindqvist, Ngozi Okafor, Harold Whitfield, Minh Tran",
                ),
                1,
                (2, 4),
                "City Hall, 410 Cooper Street",
            ),
        ),
        (
            "City Manager Dana Prescott",
            "City Attorney Samuel Oyelaran",
            "Public Works Director Ines Galvan",
            "City Clerk Ruth Abernathy",
        ),
        ("Sawmill Road", "Cooper Street", "Alder Lane", "Vineyard Avenue", "Old Ferry Road", "Quail Court", "Depot Street"),
    ),
    Town(
        "portellery.me",
        "Town of Port Ellery",
        "ME",
        "town",
        "44.0871,-68.8143",
        (
            Body(
                "Select Board",
                "sentence",
                "council",
                _members(
                    "Chair",
                    "Vice Chair",
                    "Board Member",
                    "Judith Thibodeau, Calvin Alden, Marguerite Pike, Owen Sewall, Priya Raman",
                ),
                0,
                (1, 3),
                "Town Office, 18 Wharf Street",
                "6:00 p.m.",
            ),
            Body(
                "Planning Board",
                "sentence",
                "planning",
                _members(
                    "Chair",
                    "Vice Chair",
                    "Board Member",
                    "Walter Hodgdon, Simone Beaulieu, Everett Colby, Leila Haddad, Amos Treadwell",
                ),
                3,
                (2,),
                "Grange Hall, 7 Meetinghouse Road",
                "7:00 p.m.",
            ),
        ),
        (
            "Town Manager Frances Dyer",
            "Harbormaster Silas Beal",
            "Code Enforcement Officer Joan Pelletier",
            "Town Clerk Miriam Knowles",
        ),
        ("Wharf Street", "Meetinghouse Road", "Tannery Lane", "Lighthouse Road", "Spruce Point Road", "Ropewalk Street"),
    ),
    Town(
        "kestrelfalls.ny",
        "City of Kestrel Falls",
        "NY",
        "city",
        "42.6405,-75.1817",
        (
            Body(
                "Common Council",
                "counted",
                "council",
                _members(
                    "President",
                    "Alderperson",
                    "Alderperson",
                    "Lorraine Brandt, Vikram Iyer, Stanley Kowalski, Rosa Mercado, Desmond Achebe, Ada Farraday, Piet Alst",
                ),
                2,
                (1, 3),
                "Council Chambers, 1 Millrace Plaza",
                "7:00 p.m.",
            ),
            Body(
                "Zoning Board of Appeals",
                "counted",
                "planning",
                _members(
                    "Chairperson",
                    "Member",
                    "Member",
                    "Bernard Osgood, Yolanda Fuentes, Gregory Tanaka, Beatrice Nwosu, Arthur Delacroix",
                ),
                3,
                (2,),
                "Council Chambers, 1 Millrace Plaza",
            ),
        ),
        (
            "Director of Finance Helen Sorensen",
            "Corporation Counsel Jerome Blackwell",
            "City Engineer Wei Zhang",
            "City Clerk Nadia Petrov",
        ),
        ("Millrace Plaza", "Foundry Street", "Upper Falls Road", "Canal Street", "Hemlock Avenue", "Turnpike Road"),
    ),
    Town(
        "bramblecreek.k12",
        "Bramble Creek Unified School District",
        "OR",
        "school district",
        "44.9182,-123.3170",
        (
            Body(
                "Board of Trustees",
                "called",
                "school",
                _members(
                    "President",
                    "Vice President",
                    "Trustee",
                    "Angela Cho, Rafael Delgado, Kirsten Halvorsen, Malik Freeman, Susan Yamamoto",
                ),
                3,
                (1, 3),
                "District Office, 2200 Orchard Way",
                "5:30 p.m.",
            ),
        ),
        (
            "Superintendent Carol Whitaker",
            "Chief Business Officer Luis Navarro",
            "Director of Facilities Brian Hatfield",
            "Recording Secretary Denise Moreau",
        ),
        ("Orchard Way", "Hazelnut Drive", "Schoolhouse Road", "Creekside Lane", "Filbert Street"),
        ("Bramble Creek High School", "Orchard Elementary School", "Filbert Middle School", "Creekside Elementary School"),
    ),
)


def town(subdomain: str) -> Town:
    return next(one for one in TOWNS if one.subdomain == subdomain)
