"""The words that the rules know: titles, given names, what ends the name of a street or a company, what is never a name."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The last word of a title that stands before a name: "Public Works Director Craig Novak". Folded.
TITLE_HEADS = _words("""
    mayor vice-mayor councilmember councilmembers councilman councilmen councilwoman councilwomen councilor councilors
    councillor councillors alderman aldermen alderwoman alderperson alder alders ald aldermember commissioner
    commissioners comm comms commissioner-elect supervisor supervisors trustee trustees selectman selectmen
    selectwoman selectperson selectmember sel director directors member members chair chairman chairwoman chairperson
    chairmen chrm chmn president vice-president president-elect secretary treasurer secretary-treasurer clerk
    clerk-treasurer moderator governor senator representative assemblymember congressman congresswoman judge justice
    juror jurors delegate freeholder freeholders legislator regent regents manager administrator superintendent
    principal attorney counsel solicitor engineer planner chief sheriff undersheriff deputy officer sergeant sgt
    lieutenant lt captain capt corporal detective marshal firefighter inspector auditor assessor collector controller
    comptroller recorder coordinator specialist analyst assistant technician librarian coach teacher nurse surveyor
    architect consultant forester ranger harbormaster warden constable accountant designer foreman agent liaison
    ombudsman registrar treasurer/clerk ceo cfo tem pro-tem mr mrs ms miss dr rev reverend pastor father fr sister
    brother rabbi imam prof professor hon honorable esq atty col gen maj abutter applicant appellant resident citizen
    visitor speaker petitioner homeowner landowner owner landowners owners student developer guest witness
    """)
# Titles of those who vote.
MEMBER_TITLES = _words("""
    mayor vice-mayor tem councilmember councilmembers councilman councilmen councilwoman councilwomen councilor
    councilors councillor councillors alderman aldermen alderwoman alderperson alder alders ald commissioner
    commissioners comm comms supervisor supervisors trustee trustees selectman selectmen selectwoman sel director
    directors member members chair chairman chairwoman chairperson chrm chmn president vice-president juror jurors
    regent regents delegate freeholder freeholders legislator
    """)
_PLURALS = (
    "Councilmembers|Council Members|Councilmen|Councilwomen|Councilors|Councillors|Aldermen|Alders|Alderpersons"
    "|Commissioners|Comms\\."
    "|Supervisors|Trustees|Selectmen|Directors|Board Members|Committee Members|Agency Members|Members|Regents|Jurors"
    "|Delegates|Freeholders"
)
PLURAL_TITLES = f"(?:{_PLURALS}|{_PLURALS.upper()})"
# Before the head, or alone between a title and a name: "Vice", "Board President", "Deputy Fire Chief".
TITLE_PARTS = _words("""
    vice deputy assistant associate senior junior acting interim former retired chief board council city town county
    village borough township district state police fire public works human services resources finance financial
    community development building planning zoning health environmental parks park recreation highway road animal
    control code compliance emergency economic utilities water sewer wastewater information technology executive
    general project program operations recording administrative business office town's state's special civil first
    second third pro and for of the agency committee commission library school schools transportation traffic housing
    legal legislative student social law enforcement safety technical maintenance customer service budget accounting
    purchasing risk capital airport port harbor harbour medical cultural arts museum engineering real estate property
    street streets facilities fleet staff principal clerk treasurer secretary athletic
    """)
# What goes on after "Director of", "Clerk of the", before the name.
TITLE_TAILS = _words("""
    board council police schools public works finance human resources community development planning courts court
    education house senate staff fire parks recreation health engineering utilities assembly operations
    """)

GIVEN_NAMES = _words("""
    aaron abby abdul abel abigail abraham ada adam adela adele adrian adriana agnes ahmed aida aileen aisha akiko al
    alan alana albert alberta alejandra alejandro alex alexa alexander alexandra alexis alfonso alfred alfredo ali
    alice alicia alison allan allen allison alma alonzo althea alvin alyssa amanda amber amelia amir amy ana andre
    andrea andreas andres andrew andy angel angela angelica angelo angie anita ann anna anne annette annie annmarie
    anthony antoine antonia antonio april archie arlene armando arnold art arthur arturo ashley ashok athena aubrey
    audrey austin ava avery bao barb barbara barry beatrice beatriz becky bella ben benjamin bernadette bernard
    bernice bert bessie beth betsy bettie betty beulah bev beverly bill billie billy blanca blake bob bobbie bobby
    bonnie boris brad bradley brandon brandy brenda brendan brent brett brian briana bridget brittany brooke bruce
    bruno bryan bryce caitlin caleb calvin camille candace cara carl carla carlos carlton carmen carol carole caroline
    carolyn carrie carter casey cassandra catalina catherine cathy cecil cecilia cedric celeste celia cesar chad
    charlene charles charlie charlotte chase chelsea cheng cheryl chester chloe chris christian christie christina
    christine christopher christy chuck cindy claire clara clarence clark claude claudia clayton clifford clifton
    clint clinton clyde cody colin colleen connie connor conrad constance cora corey cornelius cory courtney craig
    crystal curtis cynthia daisy dale dallas damon dan dana daniel daniela danielle danny darlene darnell darrell
    darren darryl dave david dawn dean deanna deb debbie deborah debra dee deepak delia delores deloris dena denis
    denise dennis derek derrick desmond devin devon diana diane dianne diego dina dmitri dolores dominic don donald
    donna donnie dora doreen doris dorothy doug douglas drew duane dustin dwayne dwight dylan earl ed eddie edgar
    edith edmund edna eduardo edward edwin eileen elaine elba eleanor elena eli elias elijah elisa elise elizabeth
    ella ellen elliot elmer eloise elsa elsie elvira emil emily emma emmanuel enrique eric erica erik erika erin
    ernest ernesto esmeralda esperanza estelle esther ethan ethel eugene eunice eva evan evelyn everett faith fatima
    faye felicia felipe felix fernando flora florence floyd frances francesca francis francisco frank franklin fred
    freda freddie frederick gabriel gabriela gail garrett gary gene geneva genevieve geoffrey george gerald geraldine
    gerardo gilbert gina ginger giovanni gladys glen glenda glenn gloria gordon grace graciela grant greg gregg
    gregory greta guadalupe guillermo gus gustavo guy gwen gwendolyn hakim hank hannah hans harold harriet harry
    harvey hassan hazel heather hector heidi helen helena henrietta henry herbert herman hilda hiroshi holly homer
    hope horace howard hubert hugh hugo ian ida ignacio ilene imelda ingrid ines ira irene iris irma irving isaac
    isabel isabella isaiah ismael israel ivan jack jackie jackson jacob jacqueline jaime jake jamal james jamie jan
    jana jane janet janice janis jared jasmine jason javier jay jean jeanette jeanne jeff jeffery jeffrey jen jenna
    jennifer jenny jeremiah jeremy jerome jerry jesse jessica jessie jesus jill jim jimmy jin jo joan joann joanna
    joanne joaquin jocelyn jodi jody joe joel johanna john johnny jon jonathan jordan jorge jose josefina joseph
    josephine josh joshua joy joyce juan juana juanita judith judy julia julian juliana julie julio june justin
    kaitlyn kamal kara karen karin karl karla kate katherine kathleen kathryn kathy katie katrina kay kayla keisha
    keith kelly kelvin ken kendra kenji kenneth kent kerry kevin khalid kim kimberly kirk kris krista kristen kristin
    kristina kristine kumar kurt kyle lakshmi lamar lana lance larry latoya laura lauren laurence laurie lawrence leah
    lee leigh leila lena leo leon leona leonard leonardo leroy leslie lester leticia lewis liam lien lila lillian lily
    linda lindsay lindsey ling lisa liz lloyd logan lois lola lonnie loren lorena loretta lori lorna lorraine lou
    louis louisa louise lourdes lucas lucia lucille lucinda lucy luis luke lupe luther luz lydia lyle lynda lynette
    lynn mabel madeline mae maggie mai malcolm mandy manuel marc marcel marcella marcia marco marcos marcus margaret
    margarita margie maria mariah marian marianne maribel marie marilyn mario marion marisol marjorie mark marlene
    marsha marshall martha martin marty marvin mary maryann mateo matt matthew maureen maurice max maxine maya megan
    mei melanie melba melinda melissa melody melvin mercedes meredith mia micah michael michelle miguel mike mildred
    miles milton mindy miranda miriam mitchell mohamed mohammad moises molly mona monica monique morgan morris moses
    muhammad muriel myra myrna myrtle nadia nadine nancy naomi natalia natalie natasha nate nathan nathaniel neal ned
    neil nellie nelson nettie nicholas nick nicole nikhil nina nita noah noel nora norma norman octavio olga oliver
    olivia ollie omar opal ophelia orlando orville oscar otis otto owen pablo paige pam pamela pat patricia patrick
    patsy patti patty paul paula pauline pearl pedro peggy penelope penny percy perry pete peter phil philip phillip
    phyllis pierre polly preston priscilla priya quentin quincy rachel rafael rahul raj rajesh ralph ramon ramona
    randall randy raquel raul ravi ray raymond rebecca reggie regina reginald rene renee rex reynaldo rhonda ricardo
    richard rick ricky rita rob robert roberta roberto robin rochelle roderick rodney rodolfo rodrigo roger roland
    rolando roman ron ronald ronnie rosa rosalie rosalind rosario rose rosemary rosie ross roxanne roy ruben ruby
    rudolph rudy rufus russ russell ruth ryan sabrina sadie sally salvador salvatore sam samantha sammy samuel sandra
    sandy sanjay santiago santos sara sarah saul scott sean selena serena sergio seth shane shannon shari sharon shaun
    shawn sheila shelby sheldon shelia shelley shelly sheri sherman sherri sherry sheryl shirley sid sidney sierra
    silvia simon simone sofia solomon sonia sonja sonya sophia sophie stacey stacy stan stanley stella stephanie
    stephen steve steven stewart stuart sue suresh susan susana susie suzanne sylvester sylvia tamara tamika tammy
    tania tanya tara taylor ted terence teresa teri terrance terrell terrence terri terry thelma theodore theresa
    thomas tiffany tim timothy tina todd tom tommy toni tony tonya tracey traci tracy travis trevor trisha troy tyler
    tyrone ursula valerie vanessa vera vernon veronica vicki vickie vicky victor victoria vijay vince vincent viola
    violet virgil virginia vivian wade wallace walter wanda warren wayne wei wendell wendy wesley whitney wilbur
    wilfred will willard william willie wilma winifred winston wm woodrow xavier yesenia yolanda yvette yvonne zachary
    zoe zulema
    """)

STREETS = (
    r"Street|St\.|Avenue|Ave\.?|Boulevard|Blvd\.?|Road|Rd\.?|Drive|Lane|Ln\.?|Court|Ct\.|Circle|Way|Place|Parkway|Pkwy\.?"
    r"|Terrace|Trail|Highway|Hwy\.?|Alley|Plaza|Square|Loop|Crossing|Turnpike|Pike|Row|Bypass"
)
PLACES = (
    r"Park|Creek|River|Lake|Bridge|Bay|Beach|Hill|Hills|Valley|Slough|Ditch|Canal|Reservoir|Pond|Point|Island|Harbor"
    r"|Trailhead|Plant"
    r"|Cemetery|Playground|Fairgrounds|Airport|Stadium|Courthouse|Subdivision|Estates|Heights|Landing|Landfill|Marina"
    r"|Forest|Preserve"
    r"|Township|County|Hall|Center|Library"
)
STATES = (
    r"Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|Florida|Georgia|Hawaii|Idaho|Illinois"
    r"|Indiana|Iowa|Kansas"
    r"|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|Mississippi|Missouri|Montana|Nebraska|Nevada"
    r"|New Hampshire"
    r"|New Jersey|New Mexico|New York|North Carolina|North Dakota|Ohio|Oklahoma|Oregon|Pennsylvania|Rhode Island"
    r"|South Carolina"
    r"|South Dakota|Tennessee|Texas|Utah|Vermont|Virginia|Washington|West Virginia|Wisconsin|Wyoming"
    r"|AL|AK|AZ|AR|CA|CO|CT|FL|GA|ID|IL|IA|KS|KY|LA|MA|MD|ME|MI|MN|MO|MS|MT|NC|ND|NE|NH|NJ|NM|NV|NY|OH|OK|PA|RI|SC|SD"
    r"|TN|TX|UT"
    r"|VA|VT|WA|WI|WV|WY"
)
COMPANIES = r"Inc|LLC|L\.L\.C|LLP|L\.L\.P|Ltd|L\.P|LP|Co|Corp|P\.C|PC|PLLC|P\.A|N\.A"
# Words that make a run of capitalised words the name of an organisation.
ORG_WORDS = _words("""
    company corporation department dept commission committee council board authority district association agency union
    university college school schools church hospital club foundation society partners associates engineers
    engineering consulting consultants bank cooperative alliance institute division bureau administration league
    chamber group holdings construction contractors academy coalition federation trust court ministries nursery
    services industries enterprises systems solutions communities properties management jaycees rotary lions kiwanis
    legion ymca library clinic brothers sons materials aggregates utility utilities network task force guild tribe
    nation conservancy office organization center
    """)
ORG_BEGINNINGS = (
    r"City|Town|Village|County|Township|Borough|State|Friends|Bank|University|Housing Authority|Commonwealth|Parish"
)

# A capitalised word that is in no name of a person.
NOT_NAMES = _words("""
    january february march april may june july august september october november december monday tuesday wednesday
    thursday friday saturday sunday christmas easter thanksgiving motion motions second seconded moved carried passed
    failed adopted approved denied vote votes voted voting roll call ayes aye nays nay noes no yes yeas yea abstain
    abstained abstaining absent present excused none all unanimous unanimously tally question consent calendar agenda
    agendas minutes meeting meetings regular special joint session hearing hearings public comment comments
    communications correspondence announcements report reports presentation presentations proclamation proclamations
    pledge allegiance invocation adjournment adjourn adjourned order old new business unfinished item items action
    discussion closed executive open ordinance ordinances resolution resolutions bill bills article articles chapter
    section title warrant warrants budget audit policy policies contract agreement amendment amendments permit
    variance plan plans project projects map tract parcel lot block zone zoning planning commission commissions
    committee council board boards authority district department dept division office agency association city town
    county village borough township state federal national united states american america north south east west
    northern southern eastern western northeast northwest southeast southwest central upper lower street avenue
    boulevard road drive lane court circle parkway highway loop plaza square trail bridge route freeway school schools
    high elementary middle university college church hospital library fire police parks recreation transit inc llc ltd
    corp company corporation services service center centre systems group partners associates engineering engineers
    construction consulting foundation union bank club rotary the this that these those there then they their it its
    he she his him we our you your who whom which what when where why how if and or but nor for from with without upon
    on in at by to of as an a be is was were are been has have had will shall must can after before during following
    being also both each every any some such same other others another either neither page draft unapproved unadopted
    official attest submitted respectfully prepared signed date time place name address general fund funds capital
    improvement improvements annual monthly quarterly fiscal year phase whereas therefore resolved now applicant
    petitioner staff members member citizens residents guests visitors recommendation recommendations conditions
    findings exhibit attachment case appeal application request petition chambers room floor building hall auditorium
    gymnasium mr mrs ms dr motioned further nothing everyone nobody someone english spanish internet zoom webinar
    teleconference teleconferenced code act law rule rules appointments appointment licenses attendance attendees
    attended attending quorum director directors commissioner commissioners supervisors supervisor trustee trustees
    mayor president chair chairman clerk treasurer secretary manager administrator attorney engineer planner chief
    sheriff superintendent counsel solicitor officer vice pro tem deputy assistant senior interim acting former
    principal councilmember councilmembers councilman councilwoman alderman selectmen selectman selectboard governor
    senator representative speaker speakers judge recording technical associate community development economic human
    resources health safety environmental housing finance financial water sewer wastewater sanitation utility
    utilities electric power gas solar energy waste traffic transportation airport harbor port streets sidewalk
    sidewalks storm drainage flood control emergency management operations maintenance opened reviewed accept accepted
    acceptance approve approval adopt adoption award authorize authorization consideration consider considered
    introduction election elected oath proceedings journal notice certification certificate certify recess reconvene
    reconvened convened called reading first third fourth fifth sixth seventh eighth ninth tenth one two three four
    five six seven eight nine ten proclaimed county's city's town's board's council's commission's
    """)
# Surnames that are also words: alone, they need a title or a vote to be a person.
AMBIGUOUS = _words("""
    her hall park green brooks bright long young white black brown may mark will stone wood hill field banks bell king
    day grant hope price rich sharp small strong swift pike lane street church school bridge ford forest glass gold
    gray grey hunt just knight law lake marsh meadows mills moss north south east west page parks pool power rains
    reed rivers rose rush sage sale sands short snow spring springs summers sun swan waters weeks wells wheeler winter
    winters woods best bond book branch case chance close cross dean drew early end fair farmer fish fox frost love
    major mason miller noble poor post pope proper rice said see stack summer teller thing track train trees union
    wall ward ware wise worth
    """)
# What somebody does whom minutes name.
SPEECH = re.compile(
    r"(?:\s*,[^,.;\n]{1,60},)?\s+(?:also\s+|then\s+|again\s+|briefly\s+)?"
    r"(?:said|says|stated|spoke|asked|addressed|thanked|expressed|commented|requested|reported|presented|explained"
    r"|noted|opposed|supported"
    r"|inquired|urged|voiced|gave|provided|described|answered|responded|introduced|discussed|recommended|objected|felt"
    r"|suggested|announced"
    r"|complained|encouraged|shared|reviewed|summarized|read|led|testified|advised|questioned|wished|told|outlined"
    r"|updated|clarified"
    r"|called|moved|seconded|arrived|left|joined|attended|appeared|protested|offered|represented|disclosed|declared"
    r"|made|read|wanted"
    r"|indicated|agreed|disagreed|nominated|mentioned|pointed|believes|feels|would|has|was|is|will)\b"
)
