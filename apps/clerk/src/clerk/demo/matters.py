"""What comes before the bodies of the demonstration's municipalities: a heading, what is reported, what is moved.

Words in braces are filled in by `clerk.demo.texts`: {street} {number} {amount} {percent} {firm} {person} {school}
{resolution} {ordinance} {parcel} {days} {department} {staff}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Matter:
    heading: str
    report: str
    motion: str  # "to ..."


MATTERS: Final[dict[str, tuple[Matter, ...]]] = {
    "council": (
        Matter(
            "Resurfacing of {street}",
            "Three bids were opened for grinding and repaving {street} between the bridge and the city limit. The"
            " lowest came from {firm} at {amount}, which is {percent} percent under the estimate. Work would begin"
            " within {days} days and one lane would stay open to traffic at all times.",
            "to award the contract for the resurfacing of {street} to {firm} in an amount not to exceed {amount}",
        ),
        Matter(
            "Purchase of a Fire Engine",
            "The reserve engine is twenty-six years old and failed its last two pump tests. {firm} offers a"
            " demonstrator unit for {amount}, and a state grant covers {percent} percent of the price if the order is"
            " placed within {days} days.",
            "to adopt Resolution No. {resolution} authorizing the purchase of one fire engine from {firm} for {amount}",
        ),
        Matter(
            "Short-Term Rental Ordinance, Second Reading",
            "The draft limits rentals of less than thirty days to {percent} percent of the dwellings on any block"
            " and requires a local contact who answers within one hour. Since the first reading the fee schedule was"
            " moved to a separate resolution.",
            "to adopt Ordinance No. {ordinance} regulating short-term rentals",
        ),
        Matter(
            "Water Main Replacement, {street}",
            "The cast-iron main under {street} broke four times last winter. Replacing eleven hundred feet with"
            " ductile iron would cost {amount}. The water fund can pay for it without a rate increase, but the"
            " reserve would fall to {percent} percent.",
            "to approve the water main replacement on {street} and appropriate {amount} from the water fund",
        ),
        Matter(
            "Library Hours and Staffing",
            "Circulation grew by {percent} percent over the year. Opening on Sunday afternoons needs two part-time"
            " positions at a combined {amount} a year; the Friends of the Library pledged to pay for the first {days}"
            " days.",
            "to direct staff to open the library on Sundays and amend the budget by {amount}",
        ),
        Matter(
            "Lease of the Depot Building",
            "The building at {number} {street} has stood empty since the bakery closed. A cooperative of ceramic"
            " artists asks for a five-year lease, would repair the roof at its own expense, and would pay {amount}"
            " over the term.",
            "to approve the lease of {number} {street} on the terms presented by staff",
        ),
        Matter(
            "Speed Limit on {street}",
            "Counters placed for {days} days recorded that {percent} percent of drivers exceed the posted limit near"
            " the crosswalk. The engineer recommends twenty-five miles per hour and two raised crossings at a cost"
            " of {amount}.",
            "to introduce Ordinance No. {ordinance} lowering the speed limit on {street} to twenty-five miles per hour",
        ),
        Matter(
            "Agreement with the County for Animal Control",
            "The county proposes to raise its annual charge by {percent} percent to {amount}. Sheltering animals"
            " locally was studied and would cost about twice as much. The present agreement ends in {days} days.",
            "to authorize a two-year animal control agreement with the county at {amount} a year",
        ),
        Matter(
            "Solar Panels on the Corporation Yard",
            "{firm} would install panels on the roof of the corporation yard at {number} {street}. The system costs"
            " {amount}, would supply {percent} percent of the yard's electricity, and pays for itself in nine years.",
            "to reject all bids and direct staff to advertise the solar project again with a battery option",
        ),
        Matter(
            "Tree Removal Appeal, {number} {street}",
            "The owner, {person}, asks to remove a heritage oak whose roots lift the sidewalk. The arborist rates"
            " the tree as healthy and recommends root pruning, at an estimated {amount}, before removal is considered"
            " again.",
            "to deny the appeal and uphold the arborist's decision concerning {number} {street}",
        ),
    ),
    "planning": (
        Matter(
            "Variance, {number} {street}",
            "{person} seeks relief from the side yard setback for a two-story addition. The lot is {percent} percent"
            " smaller than the district requires, and the neighbors on both sides submitted letters in favor.",
            "to grant the variance for {number} {street} with the condition that no window faces the east lot line",
        ),
        Matter(
            "Site Plan Review, {firm}",
            "{firm} proposes a warehouse of nineteen thousand square feet on parcel {parcel}. Stormwater would be"
            " held in a pond designed for the fifty-year storm. Deliveries would be limited to daytime hours for the"
            " first {days} days.",
            "to approve the site plan for parcel {parcel} subject to a performance bond of {amount}",
        ),
        Matter(
            "Subdivision of Parcel {parcel}",
            "The preliminary plat shows nine lots on a private road ending in a turnaround. The fire chief asked for"
            " a second hydrant. Wetlands cover {percent} percent of the tract and stay in common ownership.",
            "to approve the preliminary plat of parcel {parcel} with nine lots and a second hydrant",
        ),
        Matter(
            "Conditional Use, {number} {street}",
            "{person} would like to operate a day care for twelve children in a single-family residence. Parking for"
            " three cars is available behind the house. Two residents of {street} spoke about traffic in the"
            " morning.",
            "to grant a conditional use permit for a day care at {number} {street}, to be reviewed after one year",
        ),
        Matter(
            "Sign Permit, {number} {street}",
            "The applicant asks for an internally lit sign of forty square feet. The historic district allows"
            " external light only and a maximum of {percent} square feet. A revised drawing was promised within"
            " {days} days.",
            "to approve the sign at {number} {street} as submitted",
        ),
    ),
    "school": (
        Matter(
            "Roof Replacement at {school}",
            "The roof over the gymnasium leaks in nine places. {firm} was the lowest of four bidders at {amount}."
            " The work fits into the summer recess of {days} days, and bond money pays for {percent} percent of it.",
            "to award the roofing contract for {school} to {firm} for {amount}",
        ),
        Matter(
            "Adoption of a Mathematics Curriculum",
            "A committee of fourteen teachers piloted two programs in the sixth grade, and all but {percent} percent"
            " of the parents who answered preferred the second. Books and training for all middle grades come to"
            " {amount} over three years.",
            "to adopt the mathematics curriculum recommended by the committee at a cost of {amount}",
        ),
        Matter(
            "Bus Routes and Bell Times",
            "Starting {school} twenty minutes later would save two buses and about {amount} a year. A survey"
            " returned by {percent} percent of families shows a narrow majority in favor.",
            "to change the bell schedule of {school} beginning with the next school year",
        ),
        Matter(
            "Interdistrict Transfer Policy, First Reading",
            "The revision gives siblings of present students a place before others and sets the deadline {days} days"
            " earlier. Counsel reviewed the text and asked for one clarification about appeals.",
            "to approve the first reading of the interdistrict transfer policy",
        ),
        Matter(
            "Kitchen Equipment for {school}",
            "The walk-in refrigerator at {school} failed over the holiday and {amount} worth of food was discarded."
            " Replacement units are available from {firm} in {days} days.",
            "to authorize the purchase of kitchen equipment for {school} from {firm} for {amount}",
        ),
        Matter(
            "Second Interim Financial Report",
            "Enrollment is {percent} percent below projection, yet the ending balance stays above the required"
            " reserve by {amount}. A positive certification is recommended for the current and two following years.",
            "to approve the second interim report with a positive certification",
        ),
    ),
    "budget": (
        Matter(
            "Proposed Budget, {department}",
            "The {department} Department asks for {amount}, an increase of {percent} percent, mostly for salaries"
            " and fuel. Overtime was cut by a third. A vacant position would stay open for {days} days to save money.",
            "to include {amount} for the {department} Department in the proposed budget",
        ),
        Matter(
            "Capital Request, {department}",
            "The {department} Department requests {amount} for equipment, to be bought from {firm}. The present"
            " equipment has been repaired three times this year, and parts take {days} days to arrive.",
            "to fund the capital request of the {department} Department in the amount of {amount}",
        ),
        Matter(
            "Reduction, {department}",
            "To balance the budget a reduction of {amount} is proposed in the {department} Department. Its head"
            " explained that {percent} percent of the requests from the public would then wait for more than {days}"
            " days.",
            "to reduce the budget of the {department} Department by {amount}",
        ),
        Matter(
            "Fees, {department}",
            "Fees collected by the {department} Department cover {percent} percent of its costs. A survey of seven"
            " neighboring cities shows that ours are the lowest. The new schedule would bring in {amount} a year.",
            "to adopt Resolution No. {resolution} setting the fees of the {department} Department",
        ),
    ),
}

# Each of these comes up once, on a page of its own choosing: what somebody would search for.
RARE: Final[dict[str, Matter]] = {
    "culvert": Matter(
        "Emergency Repair of the Culvert under Sawmill Road",
        "During the storm of the previous week the corrugated culvert that carries Tamarack Creek under Sawmill Road"
        " collapsed, and the road washed out over a length of sixty feet. {firm} can install a precast concrete box"
        " culvert within {days} days for {amount}. The county engineer supports the repair and the state has been"
        " asked for disaster funds.",
        "to declare an emergency and authorize {firm} to replace the culvert under Sawmill Road for {amount}",
    ),
    "breakwater": Matter(
        "Study of the Outer Breakwater",
        "The harbormaster reported that stones at the seaward end of the breakwater have shifted and that moorings"
        " behind it were lost in two gales. A study by {firm} would take {days} days and cost {amount}.",
        "to engage {firm} for a study of the breakwater at a cost of {amount}",
    ),
    "beekeeping": Matter(
        "Variance for Beekeeping, {number} {street}",
        "{person} keeps two hives on a lot that is smaller than the ordinance allows for beekeeping. Nobody"
        " objected, and the school across the street asked for a visit with its third grade.",
        "to grant a variance for beekeeping at {number} {street} for not more than two hives",
    ),
    "planetarium": Matter(
        "Gift of a Portable Planetarium",
        "The estate of a retired science teacher offers a portable planetarium and {amount} for its upkeep. The high"
        " school would house it and lend it to every elementary school for {days} days a year.",
        "to accept the gift of a portable planetarium with the thanks of the Board",
    ),
}

DEPARTMENTS: Final = (
    "Fire",
    "Police",
    "Parks",
    "Library",
    "Finance",
    "Street",
    "Sewer",
    "Planning",
    "Assessment",
    "Recreation",
)

FIRMS: Final = (
    "Granite Ridge Paving",
    "Tolliver and Sons Construction",
    "Bluewater Engineering",
    "Northfork Mechanical",
    "Halcyon Builders",
    "Pinnacle Utility Services",
    "Corvane Equipment",
    "Westerly Design Group",
)

RESIDENTS: Final = (
    "Margaret Dunleavy",
    "Jorge Villanueva",
    "Patricia Osterman",
    "Ahmed Siddiqui",
    "Donna Castellano",
    "Theodore Banks",
    "Hannah Eriksen",
    "Curtis Monroe",
    "Mei-Ling Hsu",
    "Francis Gallagher",
    "Olive Brathwaite",
    "Nathan Kurz",
)

COMMENTS: Final = (
    "asked when the potholes in front of the house would be filled",
    "thanked the volunteers who planted daffodils along the median",
    "spoke about noise from leaf blowers early in the morning",
    "urged that the draft budget be published before the hearing",
    "invited everybody to the spaghetti supper at the fire station",
    "reported that the streetlight at the corner has been dark for a month",
    "objected to the length of time allowed for public comment",
    "asked that the recycling drop-off be opened on Saturdays",
    "described water standing in the basement after every heavy rain",
    "requested a crossing guard near the playground",
)

REMARKS: Final = (
    "asked whether the estimate includes traffic control, and staff answered that it does",
    "noted that the reserve fund was meant for exactly this purpose",
    "preferred to wait for the results of the audit",
    "wished to see the warranty in writing before the contract is signed",
    "disclosed a conversation with the applicant and said that it would not affect the decision",
    "pointed out that the same question was discussed two years ago",
    "suggested that neighbors receive notice by mail and not only by the web site",
    "thanked staff for the thorough report",
)

CONSENT: Final = (
    "Payment of warrants in the amount of {amount}",
    "Treasurer's report for the month",
    "Acceptance of a grant of {amount} for playground equipment",
    "Second amendment to the agreement with {firm}",
    "Appointment of {person} to the recreation advisory committee",
    "Proclamation of National Library Week",
    "Declaration of surplus vehicles and authorization of their sale",
    "Renewal of the liability insurance for {amount}",
)

REPORTS: Final = (
    "{staff} reported that the street sweeping schedule returns to normal next week.",
    "{staff} announced that applications for boards and commissions are due within {days} days.",
    "{staff} summarized the annual audit, which contained no findings.",
    "{staff} said that the new telephone system will be installed at {number} {street}.",
    "{staff} reported {percent} percent fewer calls for service than in the same month last year.",
    "{staff} described the bids received for office furniture, the lowest being {amount}.",
)
