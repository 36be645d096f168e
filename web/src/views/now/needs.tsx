import { useNavigate } from '@tanstack/react-router';
import { type RefObject, useEffect, useRef, useState } from 'react';
import { isRun, type Work } from '../../api/client';
import { idsOfCause, type Need, useNeedPages } from '../../api/needs';
import { actions, useAction, useMergePreview } from '../../api/queries';
import { counted, grouped, inline, inWords, nameOfPath } from '../../model/format';
import { proofLine } from '../../model/proof';
import { canMergeAnyway, checksLine, latest, obstacle, repositoryOf, stateOf } from '../../model/work';
import { Button, Empty, Loading, Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { PullRequest } from '../../parts/proofs';
import { useSeen } from '../../parts/seen';
import { Age, Said } from '../../parts/text';
import { useKeys } from '../../shell/keys';
import { useScope } from '../../shell/preferences';
import { Act } from '../act';
import { Later, useMark } from '../marks';
import { MergeDialog } from '../merge_dialog';
import { Questions } from '../questions';
import { WorkLink } from '../work_link';

/** Puts the focus on the chosen need when the one that had it is gone, as after an answer. */
function useFocusKept(list: RefObject<HTMLUListElement | null>, key: string | undefined): void {
  const had = useRef(false);
  useEffect(() => {
    const look = () => {
      had.current = list.current?.contains(document.activeElement) ?? false;
    };
    document.addEventListener('focusin', look);
    return () => document.removeEventListener('focusin', look);
  }, [list]);
  useEffect(() => {
    if (!had.current || document.activeElement !== document.body) return;
    list.current?.querySelector<HTMLElement>(':scope > li[tabindex="0"]')?.focus();
  }, [list, key]);
}

interface NeedsProps {
  needs: Need[];
  rows: number;
  running: number;
  more: (() => void) | null;
}

/** Everything that needs the person; the chosen one is open. */
export function Needs({ needs, rows, running, more }: NeedsProps) {
  const [chosen, choose] = useState<string | null>(null);
  const list = useRef<HTMLUListElement>(null);
  const navigate = useNavigate();
  const at = Math.max(
    0,
    needs.findIndex((need) => need.key === chosen),
  );
  const step = (by: number) => {
    const next = needs[Math.max(0, Math.min(needs.length - 1, at + by))];
    if (!next) return;
    choose(next.key);
    list.current?.querySelectorAll<HTMLElement>(':scope > li')[needs.indexOf(next)]?.focus();
  };
  const current = needs[at];
  useFocusKept(list, current?.key);
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    a: () => document.querySelector<HTMLElement>('.needs .open .field')?.focus(),
    Enter: () => {
      if (current && current.count === 1) {
        navigate({ to: `/${isRun(current.work) ? 'runs' : 'tasks'}/${current.work.id}` });
      }
    },
  });
  if (needs.length === 0) {
    return (
      <Empty title="Nothing needs you">
        <p>
          Questions, failures and work that is ready to merge appear here. {inWords(running)}{' '}
          {running === 1 ? 'agent is' : 'agents are'} at work.
        </p>
      </Empty>
    );
  }
  return (
    <>
      <ul ref={list} className="needs panel">
        {needs.map((need, place) => {
          const open = place === at;
          return (
            <li
              key={need.key}
              tabIndex={open ? 0 : -1}
              aria-current={open ? 'true' : undefined}
              className={open ? chosenClass(need) : ''}
            >
              <One need={need} open={open} choose={() => choose(need.key)} />
              <span className="age">
                <Age at={need.at} />
                {need.count === 1 && <Later work={need.work} />}
              </span>
            </li>
          );
        })}
      </ul>
      {more && (
        <Button look="quiet" onClick={more}>
          Show more ({grouped(rows - needs.length)})
        </Button>
      )}
    </>
  );
}

const chosenClass = (need: Need): string => (need.kind === 'question' ? 'open' : 'chosen');

function One({ need, open, choose }: { need: Need; open: boolean; choose: () => void }) {
  const { work } = need;
  if (need.cause && (need.count > 1 || need.failure === 'authentication')) return <Folded need={need} />;
  switch (need.kind) {
    case 'question':
      return <Asked need={need} open={open} choose={choose} />;
    case 'failure':
      return <Failure work={work} />;
    case 'delivery':
      return <Undelivered work={work} />;
    case 'merge':
      return <Ready work={work} />;
    case 'look':
      return <Unproven work={work} />;
    case 'paused':
      return <Paused work={work} />;
    case 'flag':
      return <Flagged work={work} />;
  }
}

const Title = ({ work, children }: { work: Work; children: string }) => (
  <p className="what">
    <WorkLink work={work}>
      <Said>{work.title}</Said>
    </WorkLink>{' '}
    <span className="who">{children}</span> <Repository path={repositoryOf(work)} />
  </p>
);

/** The name of a repository, with its path where the pointer rests. */
const Repository = ({ path }: { path: string }) => (
  <span className="chip repo" title={path}>
    <Said>{nameOfPath(path)}</Said>
  </span>
);

function describeQuestions(count: number): string {
  if (count > 1) return `asks ${count} questions`;
  return count === 1 ? 'asks' : 'needs you';
}

function Asked({ need, open, choose }: { need: Need; open: boolean; choose: () => void }) {
  const { work, blocked } = need;
  const count = work.questions.length;
  const text = work.questions[0]?.text ?? work.question ?? work.reason ?? '';
  return (
    <>
      <Glyph state="you" />
      <div>
        <Title work={work}>{describeQuestions(count)}</Title>
        {open ? (
          <>
            <Questions work={work} />
            {blocked > 0 && (
              <p className="meta">
                <b>
                  {counted(blocked, 'task')} {blocked === 1 ? 'is' : 'are'} blocked by this.
                </b>
              </p>
            )}
          </>
        ) : (
          <>
            <p className="meta cut">
              <Said>{text}</Said>
            </p>
            <div className="acts">
              <Button small onClick={choose}>
                Answer
              </Button>
            </div>
          </>
        )}
      </div>
    </>
  );
}

const CAUSES: Record<string, string> = {
  authentication: 'refuses the login',
  billing: 'has no credit left',
  capability: 'lacks a needed ability',
  environment: 'could not be started',
  overloaded: 'is overloaded',
  rate_limit: 'reached a rate limit that did not reset',
  disk_full: 'The disk is full',
  limit: 'A limit was reached',
};

/** The common subject of several needs. */
function subjectOf({ kind, failure, agent, count }: Need): [string, string] {
  if (kind === 'look') return [`${counted(count, 'result')} to review`, 'completed, not proven'];
  const stopped = `${counted(count, 'task')} failed`;
  const words = CAUSES[failure ?? ''] ?? 'failed';
  const ofAll = failure === 'disk_full' || failure === 'limit';
  return ofAll ? [words, stopped] : [agent ?? '', `${words}; ${stopped}`];
}

/** Several tasks and runs that need the person for one cause, as one row with one action. */
function Folded({ need }: { need: Need }) {
  const [isOpen, open] = useState(false);
  const [project] = useScope();
  const cause = need.cause ?? '';
  const settle = useAction(async () => {
    for (const id of await idsOfCause(project, cause)) {
      if (need.kind === 'look') await actions.mark(id, { seen: true });
      else await actions.task(id, 'retry');
    }
  });
  const [subject, what] = subjectOf(need);
  const { repositories, work } = need;
  const last = isRun(work) ? undefined : latest(work);
  const evidence = need.kind === 'failure' && (last?.evidence ?? work.reason);
  const first = repositories[0];
  const retry = need.count > 1 ? `Retry all ${grouped(need.count)}` : 'Retry';
  return (
    <>
      <Glyph state={need.kind === 'look' ? 'said' : 'bad'} />
      <div>
        <p className="what">
          {subject} <span className="who">{what}</span>{' '}
          {repositories.length > 1 || !first ? (
            <span className="chip repo">{counted(repositories.length, 'repository', 'repositories')}</span>
          ) : (
            <Repository path={first} />
          )}
        </p>
        {evidence && (
          <span className="evi">
            <Said>{inline(evidence)}</Said>
          </span>
        )}
        <div className="acts">
          <Act small look="quiet" disabled={settle.isPending} onClick={() => settle.mutate(undefined)}>
            {need.kind === 'look' ? 'Mark all as reviewed' : retry}
          </Act>
          <Button small look="quiet" aria-expanded={isOpen} onClick={() => open(!isOpen)}>
            {isOpen ? 'Hide' : `Show ${grouped(need.count)}`}
          </Button>
        </div>
        <Problem error={settle.error} />
        {isOpen && <OfCause project={project} cause={cause} />}
      </div>
    </>
  );
}

/** Each task and run of one cause. */
function OfCause({ project, cause }: { project: string | undefined; cause: string }) {
  const { needs, rows, isPending, more } = useNeedPages(project, cause);
  if (isPending) return <Loading lines={2} />;
  return (
    <>
      <ul className="of-cause">
        {needs.map(({ work }) => (
          <li key={work.id}>
            <WorkLink work={work} tab={work.need === 'look' ? 'changes' : undefined} className="cut">
              <Said>{work.title}</Said>
            </WorkLink>
            <Repository path={repositoryOf(work)} />
          </li>
        ))}
      </ul>
      {more && (
        <Button small look="quiet" onClick={more}>
          Show more ({grouped(rows - needs.length)})
        </Button>
      )}
    </>
  );
}

/** The last line of a check's output that its command wrote. */
const lastLine = (output: string): string | undefined =>
  output.split('\n').findLast((line) => line.trim() && !/^\[exit code \d+\]$/.test(line.trim()));

const LONGEST_NAME = 40;
const shortened = (name: string): string =>
  name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name;

function describeFailure(work: Work, check: string | undefined, hasReportedSuccess: boolean): string {
  if (check) return `${hasReportedSuccess ? 'reported success, but ' : ''}${shortened(check)} failed`;
  return stateOf(work) === 'lost' ? 'outcome unknown (process lost)' : 'failed';
}

function Failure({ work }: { work: Work }) {
  const [asking, ask] = useState(false);
  const retry = useAction((id: string) => actions.task(id, 'retry'));
  const archive = useAction((id: string) =>
    isRun(work) ? actions.run(id, 'archive') : actions.task(id, 'archive'),
  );
  const last = isRun(work) ? undefined : latest(work);
  const failed = isRun(work) ? undefined : work.checks.find((check) => !check.passed);
  const evidence =
    (failed && lastLine(failed.output)) || last?.evidence || (work.reason && inline(work.reason));
  const what = describeFailure(work, failed?.name, last?.claimed === 'success');
  return (
    <>
      <Glyph state={stateOf(work)} />
      <div>
        <Title work={work}>{what}</Title>
        {evidence && (
          <span className="evi">
            <Said>{evidence}</Said>
          </span>
        )}
        <div className="acts">
          <WorkLink work={work} hash="continue" className="btn sm">
            {isRun(work) && !work.workspace.branch ? 'Open' : 'Continue with a hint'}
          </WorkLink>
          {canMergeAnyway(work) && (
            <Act small look="quiet" onClick={() => ask(true)}>
              Merge anyway
            </Act>
          )}
          {!isRun(work) && (
            <Act small look="quiet" disabled={retry.isPending} onClick={() => retry.mutate(work.id)}>
              Retry
            </Act>
          )}
          <Act small look="quiet" disabled={archive.isPending} onClick={() => archive.mutate(work.id)}>
            Archive
          </Act>
        </div>
        <Problem error={retry.error ?? archive.error} />
        {asking && <MergeDialog work={work} close={() => ask(false)} />}
      </div>
    </>
  );
}

function Undelivered({ work }: { work: Work }) {
  const again = useAction(actions.deliver);
  const failed = work.delivery?.status === 'failed';
  const what = work.delivery?.mode !== 'pr' ? 'merged' : 'made a pull request';
  return (
    <>
      <Glyph state="bad" />
      <div>
        <Title work={work}>{failed ? `could not be ${what}` : 'has a pull request whose CI failed'}</Title>
        {work.delivery?.reason && (
          <span className="evi">
            <Said>{work.delivery.reason}</Said>
          </span>
        )}
        <div className="acts">
          <WorkLink work={work} className="btn sm">
            Open
          </WorkLink>
          {failed && (
            <Act small look="quiet" disabled={again.isPending} onClick={() => again.mutate(work)}>
              Try again
            </Act>
          )}
          <PullRequest work={work} />
        </div>
        <Problem error={again.error} />
      </div>
    </>
  );
}

function Ready({ work }: { work: Work }) {
  const [asking, ask] = useState(false);
  const [place, isSeen] = useSeen<HTMLDivElement>();
  const preview = useMergePreview(work.id, isSeen).data;
  const against = preview && obstacle(preview);
  const ready = preview ? 'is verified and ready to merge' : 'is verified';
  return (
    <>
      <Glyph state={against ? 'bad' : 'ok'} />
      <div ref={place}>
        <Title work={work}>{against ? 'is verified but cannot be merged yet' : ready}</Title>
        {against && (
          <span className="evi">
            <Said>{against}</Said>
          </span>
        )}
        <p className="meta">
          {isRun(work) ? work.pattern : checksLine(work)}
          {work.workspace.base && `, into ${work.workspace.base}`}
        </p>
        <div className="acts">
          <WorkLink work={work} tab="changes" className="btn sm">
            Review
          </WorkLink>
          {!against && (
            <Act small look="quiet" onClick={() => ask(true)}>
              Merge
            </Act>
          )}
        </div>
        {asking && <MergeDialog work={work} close={() => ask(false)} />}
      </div>
    </>
  );
}

/** One result that no check has proven, and that nobody has looked at. */
function Unproven({ work }: { work: Work }) {
  const mark = useMark(work);
  return (
    <>
      <Glyph state="said" />
      <div>
        <Title work={work}>completed, not proven</Title>
        <p className="meta">{proofLine(work)}</p>
        <div className="acts">
          <WorkLink work={work} tab="changes" className="btn sm">
            Review
          </WorkLink>
          <Act small look="quiet" disabled={mark.isPending} onClick={() => mark.mutate({ seen: true })}>
            Mark as reviewed
          </Act>
        </div>
        <Problem error={mark.error} />
      </div>
    </>
  );
}

function Paused({ work }: { work: Work }) {
  const resume = useAction((id: string) => actions.run(id, 'resume'));
  return (
    <>
      <Glyph state="paused" />
      <div>
        <Title work={work}>is paused</Title>
        {work.reason && (
          <p className="meta">
            <Said>{inline(work.reason)}</Said>
          </p>
        )}
        <div className="acts">
          <Act small look="quiet" disabled={resume.isPending} onClick={() => resume.mutate(work.id)}>
            Resume
          </Act>
        </div>
        <Problem error={resume.error} />
      </div>
    </>
  );
}

function Flagged({ work }: { work: Work }) {
  const mark = useMark(work);
  return (
    <>
      <Glyph state={stateOf(work)} />
      <div>
        <Title work={work}>is flagged</Title>
        <div className="acts">
          <Act small look="quiet" disabled={mark.isPending} onClick={() => mark.mutate({ flagged: false })}>
            Remove flag
          </Act>
        </div>
        <Problem error={mark.error} />
      </div>
    </>
  );
}
