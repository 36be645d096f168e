import { useNavigate } from '@tanstack/react-router';
import { type RefObject, useEffect, useRef, useState } from 'react';
import { isRun, type Task, type Work } from '../../api/client';
import { actions, useAction, useMergePreview } from '../../api/queries';
import { counted, inline, inWords } from '../../model/format';
import { keyOf, type Need } from '../../model/needs';
import { canMergeAnyway, checksLine, latest, obstacle, stateOf } from '../../model/work';
import { Button, Empty, Problem } from '../../parts/controls';
import { Glyph } from '../../parts/glyph';
import { PullRequest } from '../../parts/proofs';
import { useSeen } from '../../parts/seen';
import { Age, Said } from '../../parts/text';
import { useKeys } from '../../shell/keys';
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

/** Everything that waits for the person; the chosen one is open. */
export function Needs({ needs, running }: { needs: Need[]; running: number }) {
  const [chosen, choose] = useState<string | null>(null);
  const list = useRef<HTMLUListElement>(null);
  const navigate = useNavigate();
  const at = Math.max(
    0,
    needs.findIndex((need) => keyOf(need) === chosen),
  );
  const step = (by: number) => {
    const next = needs[Math.max(0, Math.min(needs.length - 1, at + by))];
    if (!next) return;
    choose(keyOf(next));
    list.current?.querySelectorAll<HTMLElement>(':scope > li')[needs.indexOf(next)]?.focus();
  };
  const current = needs[at];
  useFocusKept(list, current && keyOf(current));
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    a: () => document.querySelector<HTMLElement>('.needs .open .field')?.focus(),
    Enter: () => {
      if (current && current.kind !== 'login') {
        navigate({ to: `/${isRun(current.work) ? 'runs' : 'tasks'}/${current.work.id}` });
      }
    },
  });
  if (needs.length === 0) {
    return (
      <Empty title="Nothing needs you">
        <p>
          Questions, failures and work that is ready to merge come here. {inWords(running)}{' '}
          {running === 1 ? 'agent is' : 'agents are'} at work.
        </p>
      </Empty>
    );
  }
  return (
    <ul ref={list} className="needs panel">
      {needs.map((need, place) => {
        const open = place === at;
        return (
          <li
            key={keyOf(need)}
            tabIndex={open ? 0 : -1}
            aria-current={open ? 'true' : undefined}
            className={open && need.kind === 'question' ? 'open' : open ? 'chosen' : ''}
          >
            <One need={need} open={open} choose={() => choose(keyOf(need))} />
            <span className="age">
              <Age at={need.at} />
              {need.kind !== 'login' && <Later work={need.work} />}
            </span>
          </li>
        );
      })}
    </ul>
  );
}

function One({ need, open, choose }: { need: Need; open: boolean; choose: () => void }) {
  switch (need.kind) {
    case 'question':
      return <Asked need={need} open={open} choose={choose} />;
    case 'login':
      return <Refused agent={need.agent} tasks={need.tasks} evidence={need.evidence} />;
    case 'failure':
      return <Failure work={need.work} />;
    case 'delivery':
      return <Undelivered work={need.work} />;
    case 'merge':
      return <Ready work={need.work} />;
    case 'flag':
      return <Flagged work={need.work} />;
  }
}

const Title = ({ work, children }: { work: Work; children: string }) => (
  <p className="what">
    <WorkLink work={work}>
      <Said>{work.title}</Said>
    </WorkLink>{' '}
    <span className="who">{children}</span>
  </p>
);

type QuestionNeed = Extract<Need, { kind: 'question' }>;

function Asked({ need, open, choose }: { need: QuestionNeed; open: boolean; choose: () => void }) {
  const { work, behind } = need;
  const count = work.questions.length;
  const text = work.questions[0]?.text ?? work.question ?? work.reason ?? '';
  return (
    <>
      <Glyph state="you" />
      <div>
        <Title work={work}>{count > 1 ? `asks ${count} things` : count ? 'asks' : 'waits for you'}</Title>
        {open ? (
          <>
            <Questions work={work} />
            {behind > 0 && (
              <p className="meta">
                <b>
                  {counted(behind, 'task')} {behind === 1 ? 'waits' : 'wait'} behind it.
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

function Refused({ agent, tasks, evidence }: { agent: string; tasks: Task[]; evidence: string }) {
  const retry = useAction(() => Promise.all(tasks.map((task) => actions.task(task.id, 'retry'))));
  return (
    <>
      <Glyph state="bad" />
      <div>
        <p className="what">
          {agent} <span className="who">refuses the login; {counted(tasks.length, 'task')} ended on it</span>
        </p>
        <span className="evi">
          <Said>{evidence}</Said>
        </span>
        <div className="acts">
          <Act small look="quiet" disabled={retry.isPending} onClick={() => retry.mutate(undefined)}>
            {tasks.length > 1 ? `Retry all ${tasks.length}` : 'Retry'}
          </Act>
        </div>
        <Problem error={retry.error} />
      </div>
    </>
  );
}

/** The last line of a check's output that its command wrote. */
const lastLine = (output: string): string | undefined =>
  output.split('\n').findLast((line) => line.trim() && !/^\[exit code \d+\]$/.test(line.trim()));

const LONGEST_NAME = 40;
const shortened = (name: string): string =>
  name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name;

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
  const said = last?.claimed === 'success';
  const what = failed
    ? `${said ? 'said done; ' : ''}${shortened(failed.name)} failed`
    : stateOf(work) === 'lost'
      ? 'was lost: nobody saw the end'
      : 'failed';
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
            {isRun(work) && !work.workspace.branch ? 'Look' : 'Continue with a hint'}
          </WorkLink>
          {canMergeAnyway(work) && (
            <Act small look="quiet" onClick={() => ask(true)}>
              Merge all the same
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
  const what = work.delivery?.mode === 'merge' ? 'merged' : 'made a pull request';
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
            Look
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
  return (
    <>
      <Glyph state={against ? 'bad' : 'ok'} />
      <div ref={place}>
        <Title work={work}>
          {against
            ? 'is verified, and cannot be merged yet'
            : preview
              ? 'is verified and ready to merge'
              : 'is verified'}
        </Title>
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

function Flagged({ work }: { work: Work }) {
  const mark = useMark(work);
  return (
    <>
      <Glyph state={stateOf(work)} />
      <div>
        <Title work={work}>is flagged</Title>
        <div className="acts">
          <Act small look="quiet" disabled={mark.isPending} onClick={() => mark.mutate({ flagged: false })}>
            Take the flag off
          </Act>
        </div>
        <Problem error={mark.error} />
      </div>
    </>
  );
}
