from pydantic import BaseModel, Field

from kapelle.patterns import Context, Failed, PatternSpec, pattern


class TwoReviewers(PatternSpec):
    prompt: str = Field(description="what is to be done")
    first: str = Field(description="an agent that reviews")
    second: str = Field(description="another agent that reviews")
    rounds: int = Field(3, ge=1, le=20, description="how often they may review")


class Opinion(BaseModel):
    content: bool = Field(description="whether nothing is to be mended")
    wish: str = Field("", description="what is to be mended")


class Agreement(BaseModel):
    rounds: int
    reason: str


@pattern("two-reviewers", spec=TwoReviewers)
async def two_reviewers(ctx: Context, spec: TwoReviewers) -> Agreement:
    """Do a task, then mend it until two reviewers are content."""
    work = await ctx.task(spec.prompt, title="Work")
    for number in range(1, spec.rounds + 1):
        if not work.ok:
            raise Failed(f"round {number}: {work.reason}")
        opinions = await ctx.gather(review(ctx, spec.first), review(ctx, spec.second))
        wishes = [opinion.wish for opinion in opinions if not opinion.content]
        if not wishes:
            return Agreement(rounds=number, reason=f"both are content after round {number}")
        work = await ctx.task("Mend this:\n" + "\n".join(wishes), title="Mend")
    raise Failed(f"they were not content in {spec.rounds} rounds", {"wishes": wishes})


async def review(ctx: Context, agent: str) -> Opinion:
    asked = f"Review the work in this directory.\n\n{await ctx.changes(patch=True)}"
    return await ctx.query(asked, Opinion, title=f"Review by {agent}", agent=agent)
