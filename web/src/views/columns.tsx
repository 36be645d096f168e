import type { ReactNode } from 'react';
import { Button } from '../parts/controls';
import { usePreference } from '../shell/preferences';

interface Props {
  tab: string | undefined;
  /** The inspector. */
  beside: ReactNode;
  children: ReactNode;
}

/** The body of a subject with its inspector beside it. In Changes the diff has all the width until one asks. */
export function Columns({ tab, beside, children }: Props) {
  const [inspector, choose] = usePreference('inspector', 'folded');
  if (tab !== 'changes') {
    return (
      <div className="cols">
        {children}
        {beside}
      </div>
    );
  }
  const isOpen = inspector === 'open';
  return (
    <>
      <div className="inspects">
        <Button small look="quiet" aria-expanded={isOpen} onClick={() => choose(isOpen ? 'folded' : 'open')}>
          {isOpen ? 'Hide details' : 'Show details'}
        </Button>
      </div>
      <div className={isOpen ? 'cols' : 'cols folded'}>
        {children}
        {isOpen && beside}
      </div>
    </>
  );
}
